//! The state of all nodes of a cluster as one node sees it.

use crate::{server::RedisServer, slot::SLOTS};

/// The reply to `CLUSTER NODES`, a line for each node.
#[derive(Debug)]
pub(super) struct View {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    id: String,
    port: u16,
    flags: Vec<String>,
    // The id of the master that it copies, if it is a replica.
    master: Option<String>,
    is_connected: bool,
    slots: Vec<(u16, u16)>,
}

/// The port of a node, the id of its master if it is a replica, and its slots.
type Role<'a> = (u16, Option<&'a str>, &'a [(u16, u16)]);

impl View {
    /// Returns the view of a node, if the node answers soon.
    pub(super) fn of(node: &RedisServer) -> Option<Self> {
        let reply = node.probe(&["CLUSTER", "NODES"]).ok()?;
        let lines: String = redis::from_redis_value(reply).ok()?;
        let members: Option<Vec<Member>> = lines.lines().map(Member::parse).collect();
        Some(Self { members: members? })
    }

    pub(super) fn knows(&self, nodes: usize) -> bool {
        self.members.len() == nodes && self.members.iter().all(Member::is_well)
    }

    /// Returns whether this many masters share all slots, and each has a replica if there are any.
    pub(super) fn is_whole(&self, masters: usize, replicas: usize, spares: usize) -> bool {
        let ports = self.masters_with_slots();
        self.knows((1 + replicas) * masters + spares)
            && self.all_slots_are_served()
            && ports.len() == masters
            && ports
                .into_iter()
                .all(|port| self.replica_of(port).is_some() == (replicas > 0))
    }

    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        self.roles() == other.roles() && self.members.iter().all(Member::is_well)
    }

    pub(super) fn serves_all_without(&self, port: u16) -> bool {
        self.all_slots_are_served() && !self.masters_with_slots().contains(&port)
    }

    pub(super) fn masters_with_slots(&self) -> Vec<u16> {
        let masters = self.members.iter().filter(|member| member.is_serving());
        masters.map(|member| member.port).collect()
    }

    pub(super) fn master_of(&self, slot: u16) -> Option<u16> {
        let mut members = self.members.iter();
        let owner = members.find(|member| member.is_serving() && member.has(slot))?;
        Some(owner.port)
    }

    pub(super) fn replica_of(&self, master: u16) -> Option<u16> {
        let mut members = self.members.iter();
        let master = members.find(|member| member.port == master)?;
        let mut members = self.members.iter();
        let replica = members.find(|member| member.master.as_ref() == Some(&master.id))?;
        Some(replica.port)
    }

    fn all_slots_are_served(&self) -> bool {
        let members = self.members.iter().filter(|member| member.is_serving());
        let served: usize = members
            .flat_map(|member| &member.slots)
            .map(|(first, last)| usize::from(last - first) + 1)
            .sum();
        served == SLOTS.len()
    }

    /// Returns the facts that all nodes must agree on, in an order that does not depend on the view.
    fn roles(&self) -> Vec<Role<'_>> {
        let members = self.members.iter();
        let mut roles: Vec<_> = members
            .map(|member| (member.port, member.master.as_deref(), &*member.slots))
            .collect();
        roles.sort_unstable();
        roles
    }
}

impl Member {
    /// `<id> <host>:<port>@<bus>[,<name>] <flag>,… <master's id or -> <ping> <pong> <epoch> <connection> <slot or slots> …`
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[
            id,
            address,
            flags,
            master,
            _,
            _,
            _,
            connection,
            ref slots @ ..,
        ] = &*words
        else {
            return None;
        };
        let (address, _) = address.split_once('@')?;
        let (_, port) = address.rsplit_once(':')?;
        // Slots in brackets are being migrated.
        let slots = slots.iter().filter(|slots| !slots.starts_with('['));
        Some(Self {
            id: id.to_owned(),
            port: port.parse().ok()?,
            flags: flags.split(',').map(str::to_owned).collect(),
            master: Some(master.to_owned()).filter(|master| master != "-"),
            is_connected: connection == "connected",
            slots: slots.map(|slots| range(slots)).collect::<Option<_>>()?,
        })
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }

    fn is_well(&self) -> bool {
        let troubles = ["fail", "fail?", "handshake", "noaddr"];
        self.is_connected && !troubles.iter().any(|flag| self.is(flag))
    }

    fn is_serving(&self) -> bool {
        self.is("master") && !self.is("fail") && !self.slots.is_empty()
    }

    fn has(&self, slot: u16) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|&(first, last)| (first..=last).contains(&slot))
    }
}

fn range(slots: &str) -> Option<(u16, u16)> {
    let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
    Some((first.parse().ok()?, last.parse().ok()?))
}
