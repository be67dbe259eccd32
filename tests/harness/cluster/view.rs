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
    // Of a replica: the id of the master that it copies.
    master: Option<String>,
    is_connected: bool,
    slots: Vec<(u16, u16)>,
}

/// The port of a node, the id of its master if it is a replica, and its slots.
type Role<'a> = (u16, Option<&'a str>, &'a [(u16, u16)]);

impl View {
    /// The view of a node, if it answers soon.
    pub(super) fn of(node: &RedisServer) -> Option<Self> {
        let reply = node.probe(&["CLUSTER", "NODES"]).ok()?;
        let lines: String = redis::from_redis_value(reply).ok()?;
        let members: Option<Vec<Member>> = lines.lines().map(Member::parse).collect();
        Some(Self { members: members? })
    }

    pub(super) fn knows(&self, nodes: usize) -> bool {
        self.members.len() == nodes && self.members.iter().all(Member::is_well)
    }

    /// Whether this many masters share all slots, and each has one replica, or none has.
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

    /// The facts that all nodes have to agree on, in the same order for each view.
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

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 4] = [
        "aa 127.0.0.1:7000@17000,name myself,master - 0 0 1 connected 0-5000 5002 [5001->-bb]",
        "bb 127.0.0.1:7001@17001 master - 0 0 2 connected 5001 5003-16383",
        "cc 127.0.0.1:7002@17002 slave aa 0 0 1 connected",
        "dd 127.0.0.1:7003@17003 slave bb 0 0 2 connected",
    ];

    fn view(lines: &[&str]) -> View {
        let members = lines.iter().map(|line| Member::parse(line).unwrap());
        View {
            members: members.collect(),
        }
    }

    #[test]
    fn a_view_has_the_node_of_each_slot_and_the_master_of_each_replica() {
        let view = view(&LINES);
        assert!(view.is_whole(2, 1, 0));
        assert_eq!(view.masters_with_slots(), [7000, 7001]);
        for (slot, port) in [
            (0, 7000),
            (5000, 7000),
            (5001, 7001),
            (5002, 7000),
            (16_383, 7001),
        ] {
            assert_eq!(view.master_of(slot), Some(port), "{slot}");
        }
        assert_eq!(view.replica_of(7001), Some(7003));
        assert_eq!(view.replica_of(7003), None);
        assert!(!view.serves_all_without(7000) && view.serves_all_without(7002));
    }

    #[test]
    fn what_is_missing_is_seen() {
        for (from, to) in [
            ("connected 0-5000", "connected 1-5000"),
            ("7003@17003 slave", "7003@17003 slave,fail"),
            ("7001@17001 master", "7001@17001 master,fail"),
            ("slave bb 0 0 2 connected", "slave bb 0 0 2 disconnected"),
            ("slave bb", "slave aa"),
        ] {
            let lines = LINES.map(|line| line.replace(from, to));
            let lines = lines.each_ref().map(String::as_str);
            assert!(!view(&lines).is_whole(2, 1, 0), "{from} is {to}");
        }
        assert!(!view(&LINES[..3]).is_whole(2, 1, 0));
    }

    #[test]
    fn views_that_name_other_masters_disagree() {
        let [aa, bb, cc, dd] = LINES;
        assert!(view(&LINES).agrees_with(&view(&[dd, bb, cc, aa])));
        let other = dd.replace("bb", "aa");
        assert!(!view(&LINES).agrees_with(&view(&[aa, bb, cc, &other])));
    }

    #[test]
    fn a_line_of_another_form_is_no_node() {
        assert!(Member::parse("aa 127.0.0.1:7000 master").is_none());
        assert!(Member::parse(&LINES[0].replace("0-5000", "0-x")).is_none());
    }
}
