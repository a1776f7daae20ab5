//! The device's clock.

use crate::arguments::{Ptr, arguments};
use crate::context::Context;
use crate::launch::{Grid, Kernel, Launch};
use paceline_device::DeviceError;

arguments! { "clock.h";
    /// Where the time goes.
    struct ClockArgs {
        time: Ptr<u64>,
    }
}

const READ: Kernel<ClockArgs> = Kernel::new("clock", "read_clock");

/// Writes the device's clock to an address.
pub(crate) fn read(context: &Context, address: u64) -> Result<Launch, DeviceError> {
    Launch::new(
        context,
        &READ,
        Grid::new(1, 1),
        &ClockArgs {
            time: Ptr::new(address),
        },
    )
}
