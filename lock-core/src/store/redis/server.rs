//! One server, and what is remembered of it.

use std::{sync::Arc, time::Duration};

use crate::store::{
    grants::Grants,
    in_flight::InFlight,
    redis::{
        connection::{
            pub_sub::Mailbox,
            reconnecting::{Link, Purpose},
        },
        fencing_counter::Counting,
        replica_acks::Acks,
        topology::{address::Address, sentinel::Sentinels, sharded_subscription::Listener},
        without_scripts::Commands,
    },
    timing::Timing,
};

/// One server that keeps locks.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) link: Arc<Link>,
    /// For users who may not run scripts.
    pub(super) commands: Commands,
    pub(super) counting: Counting,
    /// In a cluster.
    pub(super) listener: Option<Listener>,
    /// Where replicas must have a lock.
    pub(super) acks: Option<Acks>,
}

/// What every server of a manager is made with.
#[derive(Clone, Debug)]
pub(super) struct Making {
    pub(super) timing: Timing,
    /// A random name of the manager.
    pub(super) manager: Arc<str>,
    pub(super) grants: Arc<Grants>,
    pub(super) replicas: Option<Replicas>,
}

/// How many replicas must have a lock before it counts, and how long that may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) least: u32,
    pub(crate) within: Duration,
}

impl Making {
    /// A mailbox for grants, or for hints where a grant alone does not count.
    pub(super) fn mailbox(&self, channel: Arc<str>) -> Mailbox {
        let mailbox = Mailbox::new(channel, self.manager.clone(), self.grants.clone());
        if self.replicas.is_some() {
            mailbox.for_hints()
        } else {
            mailbox
        }
    }
}

impl Server {
    /// The one that has all keys.
    pub(super) fn with_all_keys(
        address: Address,
        sentinels: Option<Arc<Sentinels>>,
        mailbox: Mailbox,
        making: &Making,
    ) -> Self {
        let counting = match &sentinels {
            Some(_) => Counting::never(),
            None => Counting::while_connected(),
        };
        let link = Link::new(address, sentinels, Purpose::Locks, making.timing, mailbox);
        Self::new(link, counting, None, making)
    }

    /// One of a cluster.
    pub(super) fn of_a_cluster(address: Address, making: &Making) -> Self {
        let mailbox = making.mailbox("".into());
        let listener = Listener::new(address.clone(), making);
        let link = Link::new(address, None, Purpose::LocksOnly, making.timing, mailbox);
        Self::new(link, Counting::never(), Some(listener), making)
    }

    fn new(link: Link, counting: Counting, listener: Option<Listener>, making: &Making) -> Self {
        let link = Arc::new(link);
        let acks = making.replicas.map(|replicas| Acks::new(&link, replicas));
        let holding = acks.as_ref().map_or(&link, Acks::link).clone();
        Self {
            commands: Commands::new(link.clone(), holding),
            acks,
            link,
            counting,
            listener,
        }
    }

    /// Writes what was given to be sent at once.
    pub(super) fn flush(&self) {
        for link in self.acks.iter().map(Acks::link).chain([&self.link]) {
            link.flush();
        }
    }

    /// All that lead to it, but those on which only grants are heard.
    pub(super) fn links(&self) -> Vec<&Arc<Link>> {
        let acks = self.acks.iter().map(Acks::link);
        acks.chain([&self.link, self.commands.transactions()])
            .collect()
    }

    /// Where locks are taken: on one connection.
    pub(super) fn holding(&self) -> &Arc<Link> {
        self.acks.as_ref().map_or(&self.link, Acks::link)
    }

    /// Where a lock is let go: on the connection on which it was taken, so that the release never overtakes the acquire;
    /// or past those who wait for replicas there, if nothing of the acquire is under way any more.
    pub(super) fn releasing(&self, acquire_in_flight: &InFlight) -> &Arc<Link> {
        if acquire_in_flight.is_empty() {
            &self.link
        } else {
            self.holding()
        }
    }
}
