//! Groups of requests with one prompt: the first computes it, the others follow.

use crate::request::{GroupId, Order, RequestId};
use std::collections::{BTreeMap, HashMap};

#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<GroupId, Group>);

#[derive(Debug)]
struct Group {
    salt: u64,
    members: usize,
    /// Computes the prompt; `None` once that is done.
    leader: Option<RequestId>,
    /// Wait for the leader.
    parked: BTreeMap<Order, RequestId>,
}

/// Where a new member stands.
pub(super) struct Place {
    /// What the group's chains start from where requests outside of the group may not share them.
    pub(super) salt: u64,
    /// It waits for the leader.
    pub(super) parked: bool,
}

impl Groups {
    pub(super) fn join(&mut self, group: GroupId, id: RequestId, order: Order, salt: u64) -> Place {
        let group = self.0.entry(group).or_insert_with(|| Group {
            salt,
            members: 0,
            leader: Some(id),
            parked: BTreeMap::new(),
        });
        group.members += 1;
        let parked = group.leader.is_some_and(|leader| leader != id);
        if parked {
            group.parked.insert(order, id);
        }
        Place {
            salt: group.salt,
            parked,
        }
    }

    /// A member's prompt is computed and published: if it leads, all members that waited for it go on.
    pub(super) fn prompt_computed(&mut self, group: GroupId, id: RequestId) -> BTreeMap<Order, RequestId> {
        match self.0.get_mut(&group) {
            Some(group) if group.leader == Some(id) => {
                group.leader = None;
                std::mem::take(&mut group.parked)
            }
            _ => BTreeMap::new(),
        }
    }

    /// A member ends; returns the member that leads from now on, if it led.
    pub(super) fn leave(&mut self, name: GroupId, id: RequestId, order: Order) -> Option<(Order, RequestId)> {
        let group = self.0.get_mut(&name)?;
        group.members -= 1;
        group.parked.remove(&order);
        if group.members == 0 {
            self.0.remove(&name);
            return None;
        }
        if group.leader != Some(id) {
            return None;
        }
        let next = group.parked.pop_first();
        group.leader = next.map(|(_, id)| id);
        next
    }

    pub(super) fn parked(&self) -> usize {
        self.0.values().map(|group| group.parked.len()).sum()
    }
}
