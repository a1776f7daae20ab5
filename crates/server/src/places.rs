//! The places that connections take: how many there are, in all and for one address, and which connection gives way
//! where there are none left.

use crate::metrics::{HttpMetrics, OpenConnection};
use crate::write_timeout::Patience;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a connection without a place looks for others that can give way.
const LOOK: Duration = Duration::from_millis(100);

/// Connections that are asked to leave at a time.
const ASKED: usize = 16;

/// The places of one server.
pub(crate) struct Places {
    free: Arc<Semaphore>,
    /// How many there are.
    all: usize,
    limit: AddressLimit,
    patience: Patience,
    taken: Arc<Taken>,
    metrics: HttpMetrics,
}

/// How many connections one address may have.
#[derive(Clone, Copy, Debug)]
struct AddressLimit {
    most: usize,
    /// Whether it holds for this machine's own addresses: by default a proxy or a load test on it may take all places.
    local: bool,
}

/// Connections that are open, by their numbers.
struct Taken {
    start: Instant,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Arc<Connection>>,
    addresses: HashMap<IpAddr, usize>,
}

/// One that is open.
struct Connection {
    address: IpAddr,
    stall: Arc<StallClock>,
    hurry: CancellationToken,
    leave: Leave,
}

/// Whether a connection is to end with the reply that it is at, so that another gets its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leave(Arc<AtomicBool>);

/// Since when a connection's client has taken nothing of what is there for it.
#[derive(Debug)]
pub(crate) struct StallClock {
    start: Instant,
    /// Milliseconds after the start, and one more; 0 where it takes what there is.
    since: AtomicU64,
}

/// Held by a connection while it is open.
pub(crate) struct Place {
    number: u64,
    taken: Arc<Taken>,
    connection: Arc<Connection>,
    _permit: OwnedSemaphorePermit,
    _open: OpenConnection,
}

/// There is no place for another connection of the address.
#[derive(Debug)]
pub(crate) struct TooMany;

impl Places {
    /// `most` places; of these `per_address` for each address, where 0 sets no limit, and half if nothing is said.
    pub(crate) fn new(
        most: usize,
        per_address: Option<usize>,
        patience: Patience,
        metrics: HttpMetrics,
    ) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        let limit = match per_address {
            Some(0) => usize::MAX,
            Some(limit) => limit,
            None => most.div_ceil(2),
        };
        Self {
            free: Arc::new(Semaphore::new(most)),
            all: most,
            limit: AddressLimit {
                most: limit,
                local: per_address.is_some(),
            },
            patience,
            taken: Arc::new(Taken {
                start: Instant::now(),
                table: Mutex::default(),
            }),
            metrics,
        }
    }

    /// Waits for a place for a connection from this address. One whose client has taken nothing for long gives way to it, or
    /// else those of another address that has most of the places; what the address may not have is refused.
    pub(crate) async fn take(&self, address: IpAddr) -> Result<Place, TooMany> {
        let address = host(address);
        let limited = self.limit.local || !address.is_loopback();
        let full = limited && self.taken.count(address) >= self.limit.most;
        if full && !self.cut_stalled(Some(address)) {
            self.metrics.refused_connection();
            return Err(TooMany);
        }
        loop {
            if self.free.available_permits() == 0 && !self.cut_stalled(None) {
                self.ask_to_leave(address);
            }
            let free = Arc::clone(&self.free).acquire_owned();
            // The semaphore is never closed.
            if let Ok(Ok(permit)) = tokio::time::timeout(LOOK, free).await {
                return Ok(self.open(address, permit));
            }
        }
    }

    fn open(&self, address: IpAddr, permit: OwnedSemaphorePermit) -> Place {
        let connection = Arc::new(Connection {
            address,
            stall: Arc::new(StallClock {
                start: self.taken.start,
                since: AtomicU64::new(0),
            }),
            hurry: self.patience.hurry.child_token(),
            leave: Leave::default(),
        });
        let mut table = self.taken.lock();
        let number = table.next;
        table.next += 1;
        *table.addresses.entry(address).or_default() += 1;
        table.open.insert(number, Arc::clone(&connection));
        drop(table);
        Place {
            number,
            taken: Arc::clone(&self.taken),
            connection,
            _permit: permit,
            _open: self.metrics.connection(),
        }
    }

    /// Ends the connection, of this address or of any, whose client has taken nothing for the longest time, if that is
    /// long. Whether there is one.
    fn cut_stalled(&self, address: Option<IpAddr>) -> bool {
        let long = self.patience.last;
        let table = self.taken.lock();
        let stalled = table
            .open
            .values()
            .filter(|connection| address.is_none_or(|address| address == connection.address))
            .filter(|connection| !connection.hurry.is_cancelled())
            .filter_map(|connection| Some((connection.stall.time()?, connection)))
            .max_by_key(|(time, _)| *time);
        let Some((_, connection)) = stalled.filter(|(time, _)| *time >= long) else {
            return false;
        };
        connection.hurry.cancel();
        true
    }

    /// Asks some connections of an address with more than half of all places, if it is not this one, to end with the
    /// replies that they are at.
    fn ask_to_leave(&self, newcomer: IpAddr) {
        let table = self.taken.lock();
        let most = table.addresses.iter().max_by_key(|(_, count)| **count);
        let Some((&address, _)) = most.filter(|(_, count)| 2 * **count > self.all) else {
            return;
        };
        if address == newcomer {
            return;
        }
        let others = table.open.values().filter(|other| other.address == address);
        let staying = others.filter(|other| !other.leave.is_asked());
        staying
            .take(ASKED)
            .for_each(|other| other.leave.0.store(true, Ordering::Relaxed));
    }
}

impl Taken {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, address: IpAddr) -> usize {
        self.lock().addresses.get(&address).copied().unwrap_or_default()
    }
}

impl Place {
    /// The patience with this connection's client.
    pub(crate) fn patience(&self, usual: &Patience) -> Patience {
        Patience {
            hurry: self.connection.hurry.clone(),
            stall: Some(Arc::clone(&self.connection.stall)),
            ..usual.clone()
        }
    }

    /// Whether the connection is to leave, now or at some time.
    pub(crate) fn leave(&self) -> Leave {
        self.connection.leave.clone()
    }
}

impl Leave {
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.taken.lock();
        table.open.remove(&self.number);
        let address = self.connection.address;
        if let Some(count) = table.addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                table.addresses.remove(&address);
            }
        }
    }
}

impl StallClock {
    /// Notes that the client takes nothing any more, or takes something again.
    pub(crate) fn set(&self, stalled: bool) {
        let now = self.start.elapsed().as_millis() as u64 + 1;
        self.since.store(if stalled { now } else { 0 }, Ordering::Relaxed);
    }

    /// How long it has taken nothing; `None` if it does.
    fn time(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.start.elapsed().saturating_sub(Duration::from_millis(since)))
    }
}

/// What counts as one address: of the newer kind, a host has as many as there are within its network.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_address_however_it_is_written() {
        let same = |a: &str, b: &str| host(a.parse().unwrap()) == host(b.parse().unwrap());
        assert!(same("10.0.0.1", "::ffff:10.0.0.1"));
        assert!(same("2001:db8:1:2::1", "2001:db8:1:2:ffff::7"));
        assert!(!same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(!same("10.0.0.1", "10.0.0.2"));
        assert!(host("::1".parse().unwrap()).is_loopback());
    }
}
