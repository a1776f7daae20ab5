//! The queue: which request is admitted next.
//!
//! Priorities come first. Within one, waiting is shared between tenants by the tokens that each has had, of prompts that
//! were run and of texts that were generated: the tenant with the least is next. It is a deficit round robin that is paid
//! afterwards, since nobody knows beforehand how long a text becomes: a tenant goes to the back by what its requests
//! took, and comes to the front as the others take theirs. Within a tenant the first to arrive is next, and a request
//! that was pushed out of its slot comes back to its place.
//!
//! Whoever comes back after a while starts level with those who waited: what nobody else wanted costs nothing later, and
//! what was not used then cannot be saved up. So no tenant waits for more than what the others are ahead of it, however
//! many requests they have in the queue. Every operation is logarithmic.

use crate::request::{Order, RequestId};
use std::collections::{BTreeMap, BTreeSet};

/// The requests that wait for a slot, and what tenants have had.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By priority.
    levels: BTreeMap<i32, Level>,
    /// Priorities of those that wait.
    ready: BTreeSet<i32>,
    /// All that wait, by arrival.
    waiting: BTreeMap<u64, RequestId>,
}

/// Requests of one priority.
#[derive(Debug, Default)]
struct Level {
    /// Requests alive, in the queue or not. With the last one, what tenants have had is forgotten.
    alive: usize,
    /// What the tenant of the newest admission had had before it. Nobody who waits has had less.
    floor: u64,
    accounts: BTreeMap<u32, Account>,
    /// Tenants with requests in the queue, by what they have had.
    present: BTreeSet<(u64, u32)>,
    /// Tenants without, as long as they have had more than `floor`.
    absent: BTreeSet<(u64, u32)>,
}

/// A tenant.
#[derive(Debug)]
struct Account {
    /// Tokens run and generated for it.
    served: u64,
    /// Its requests in the queue, by arrival.
    waiting: BTreeMap<u64, RequestId>,
}

impl Queue {
    /// A request is alive from here on; it waits only once it is pushed.
    pub(super) fn enter(&mut self, order: Order) {
        self.levels.entry(order.priority).or_default().alive += 1;
    }

    /// A request has ended. It no longer waits.
    pub(super) fn leave(&mut self, order: Order) {
        self.remove(order);
        if let Some(level) = self.levels.get_mut(&order.priority) {
            level.alive -= 1;
            if level.alive == 0 {
                self.levels.remove(&order.priority);
            }
        }
    }

    /// Puts a request at its place.
    pub(super) fn push(&mut self, order: Order, id: RequestId) {
        self.waiting.insert(order.arrival, id);
        self.ready.insert(order.priority);
        self.levels
            .entry(order.priority)
            .or_default()
            .push(order.tenant, order.arrival, id);
    }

    /// The request to be admitted next.
    pub(super) fn first(&self) -> Option<(Order, RequestId)> {
        let &priority = self.ready.first()?;
        let (tenant, arrival, id) = self.levels.get(&priority)?.first()?;
        let order = Order {
            priority,
            arrival,
            tenant,
        };
        Some((order, id))
    }

    /// Takes the first request out: it is admitted, and its tenant has had `tokens` more.
    pub(super) fn admit(&mut self, order: Order, tokens: usize) {
        if let Some(level) = self.levels.get_mut(&order.priority) {
            level.catch_up(order.tenant);
        }
        self.remove(order);
        self.charge(order, tokens);
    }

    /// The tenant of a request that is alive has had `tokens` more.
    pub(super) fn charge(&mut self, order: Order, tokens: usize) {
        if let Some(level) = self.levels.get_mut(&order.priority) {
            level.charge(order.tenant, tokens as u64);
        }
    }

    /// Of all that wait, whatever their priority, the one that arrived first.
    pub(super) fn oldest(&self) -> Option<RequestId> {
        self.waiting.first_key_value().map(|(_, id)| *id)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn remove(&mut self, order: Order) {
        if self.waiting.remove(&order.arrival).is_some()
            && let Some(level) = self.levels.get_mut(&order.priority)
        {
            level.remove(order.tenant, order.arrival);
            if level.present.is_empty() {
                self.ready.remove(&order.priority);
            }
        }
    }

    /// Whether a request waits at its place.
    pub(super) fn holds(&self, order: Order, id: RequestId) -> bool {
        let account = self.levels.get(&order.priority);
        let account = account.and_then(|level| level.accounts.get(&order.tenant));
        account.is_some_and(|account| account.waiting.get(&order.arrival) == Some(&id))
            && self.waiting.get(&order.arrival) == Some(&id)
    }

    /// Panics unless the accounts tell the same story; `alive` is the number of requests alive.
    pub(super) fn check_integrity(&self, alive: usize) {
        let counted: usize = self.levels.values().map(|level| level.alive).sum();
        assert!(counted == alive, "{alive} requests are alive, {counted} counted");
        let accounts = self.levels.values().flat_map(|level| level.accounts.values());
        let waiting: usize = accounts.map(|account| account.waiting.len()).sum();
        assert!(
            waiting == self.waiting.len(),
            "{waiting} requests wait with tenants"
        );
        for (priority, level) in &self.levels {
            let ready = self.ready.contains(priority);
            assert!(ready != level.present.is_empty(), "priority {priority} is lost");
            level.check_integrity();
        }
    }
}

impl Level {
    fn first(&self) -> Option<(u32, u64, RequestId)> {
        let (_, tenant) = self.present.first()?;
        let account = self.accounts.get(tenant)?;
        let (arrival, id) = account.waiting.first_key_value()?;
        Some((*tenant, *arrival, *id))
    }

    /// A tenant's account. One that is not there has had what everybody has.
    fn account(&mut self, tenant: u32) -> &mut Account {
        let served = self.floor;
        self.accounts.entry(tenant).or_insert_with(|| Account {
            served,
            waiting: BTreeMap::new(),
        })
    }

    fn push(&mut self, tenant: u32, arrival: u64, id: RequestId) {
        let floor = self.floor;
        let account = self.account(tenant);
        let before = (account.served, tenant);
        account.served = account.served.max(floor);
        let now = (account.served, tenant);
        account.waiting.insert(arrival, id);
        self.absent.remove(&before);
        self.present.insert(now);
    }

    fn remove(&mut self, tenant: u32, arrival: u64) {
        let account = self.account(tenant);
        account.waiting.remove(&arrival);
        if account.waiting.is_empty() {
            let entry = (account.served, tenant);
            self.present.remove(&entry);
            self.absent.insert(entry);
            self.forget();
        }
    }

    fn charge(&mut self, tenant: u32, tokens: u64) {
        let account = self.account(tenant);
        let before = (account.served, tenant);
        account.served += tokens;
        let now = (account.served, tenant);
        let side = if account.waiting.is_empty() {
            &mut self.absent
        } else {
            &mut self.present
        };
        side.remove(&before);
        side.insert(now);
    }

    /// A tenant that waits is next: everybody has had at least what it has.
    fn catch_up(&mut self, tenant: u32) {
        self.floor = self.floor.max(self.account(tenant).served);
        self.forget();
    }

    /// Closes the accounts of absent tenants that have had no more than everybody.
    fn forget(&mut self) {
        while let Some(&(served, tenant)) = self.absent.first()
            && served <= self.floor
        {
            self.absent.remove(&(served, tenant));
            self.accounts.remove(&tenant);
        }
    }

    fn check_integrity(&self) {
        assert!(self.alive > 0, "a priority without requests");
        let listed = self.present.len() + self.absent.len();
        assert!(listed == self.accounts.len(), "{listed} tenants are listed");
        for (&tenant, account) in &self.accounts {
            let side = if account.waiting.is_empty() {
                &self.absent
            } else {
                &self.present
            };
            assert!(
                side.contains(&(account.served, tenant)),
                "tenant {tenant} is at the wrong place"
            );
            assert!(
                account.waiting.is_empty() || account.served >= self.floor,
                "tenant {tenant} has saved up a turn"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(priority: i32, tenant: u32, arrival: u64) -> Order {
        Order {
            priority,
            arrival,
            tenant,
        }
    }

    fn add(queue: &mut Queue, order: Order) {
        queue.enter(order);
        queue.push(order, RequestId(order.arrival));
    }

    /// Admits the first; the tokens are those of its prompt and text.
    fn admit(queue: &mut Queue, tokens: usize) -> Option<(u32, u64)> {
        let (order, id) = queue.first()?;
        assert!(queue.holds(order, id));
        queue.admit(order, tokens);
        queue.leave(order);
        Some((order.tenant, order.arrival))
    }

    #[test]
    fn the_tenant_that_had_least_is_next_and_its_first_request() {
        let mut queue = Queue::default();
        (0..6).for_each(|arrival| add(&mut queue, order(0, 1, arrival)));
        add(&mut queue, order(0, 2, 6));
        add(&mut queue, order(0, 2, 7));
        queue.check_integrity(8);
        // Two of the first tenant take what one of the second takes.
        let sizes = [10, 20, 10, 20, 10, 10, 10, 10];
        let admitted: Vec<_> = sizes.iter().map_while(|size| admit(&mut queue, *size)).collect();
        let expected = [(1, 0), (2, 6), (1, 1), (1, 2), (2, 7), (1, 3), (1, 4), (1, 5)];
        assert_eq!(admitted, expected);
        queue.check_integrity(0);
    }

    #[test]
    fn priorities_come_first() {
        let mut queue = Queue::default();
        add(&mut queue, order(1, 1, 0));
        add(&mut queue, order(0, 2, 1));
        add(&mut queue, order(0, 2, 2));
        assert_eq!(queue.oldest(), Some(RequestId(0)));
        assert_eq!(admit(&mut queue, 1000), Some((2, 1)));
        assert_eq!(admit(&mut queue, 1000), Some((2, 2)));
        assert_eq!(admit(&mut queue, 1), Some((1, 0)));
    }

    #[test]
    fn idle_time_is_neither_paid_for_nor_saved_up() {
        let mut queue = Queue::default();
        // The first tenant has the machine to itself for a while.
        (0..100).for_each(|arrival| add(&mut queue, order(0, 1, arrival)));
        for _ in 0..50 {
            admit(&mut queue, 1000);
        }
        add(&mut queue, order(0, 2, 100));
        add(&mut queue, order(0, 2, 101));
        add(&mut queue, order(0, 2, 102));
        let tenants: Vec<_> = (0..4).filter_map(|_| admit(&mut queue, 1000)).collect();
        assert_eq!(tenants, [(2, 100), (1, 50), (2, 101), (1, 51)]);
        queue.check_integrity(49);
    }

    #[test]
    fn what_a_text_takes_is_paid_while_it_runs() {
        let mut queue = Queue::default();
        let running = order(0, 1, 0);
        add(&mut queue, running);
        (1..3).for_each(|arrival| add(&mut queue, order(0, 1, arrival)));
        queue.admit(running, 5);
        (3..5).for_each(|arrival| add(&mut queue, order(0, 2, arrival)));
        queue.charge(running, 100);
        assert_eq!(admit(&mut queue, 50), Some((2, 3)));
        assert_eq!(admit(&mut queue, 50), Some((2, 4)));
        assert_eq!(admit(&mut queue, 1), Some((1, 1)));
        // Pushed out, it comes back to its place.
        queue.push(running, RequestId(0));
        queue.check_integrity(2);
        assert_eq!(admit(&mut queue, 0), Some((1, 0)));
    }

    #[test]
    fn accounts_are_closed_with_what_they_are_about() {
        let mut queue = Queue::default();
        for tenant in 0..1000 {
            add(&mut queue, order(0, tenant, u64::from(tenant)));
        }
        let last = order(0, 5000, 5000);
        add(&mut queue, last);
        for arrival in 0..1000 {
            assert_eq!(queue.levels[&0].accounts.len(), 1001);
            assert_eq!(admit(&mut queue, 1), Some((arrival, u64::from(arrival))));
        }
        assert_eq!(admit(&mut queue, 1), Some((5000, 5000)));
        assert!(queue.levels.is_empty() && queue.waiting.is_empty());
    }
}
