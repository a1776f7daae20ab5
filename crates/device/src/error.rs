//! What can go wrong on a device.

/// A failure of the device or of a request made to it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DeviceError {
    /// There is no such device, or it cannot be used; in words.
    #[error("{0}")]
    Absent(String),
    /// Storage could not be had.
    #[error("the device cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// What the storage was for.
        what: String,
        /// How much was asked.
        bytes: u64,
    },
    /// A weight cannot be stored as asked.
    #[error("weight {what}: {why}")]
    BadWeight {
        /// The tensor.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// An enqueued operation failed; everything enqueued after it was skipped.
    #[error("device operation failed: {0}")]
    Failed(String),
}
