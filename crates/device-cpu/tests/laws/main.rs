//! What every operation promises, checked through the public interface: a row's result depends on nothing but
//! its own inputs, to the last bit, and agrees with plain arithmetic in f64.

// The attributes tell the lints that helper functions are test code too.
#[cfg(test)]
mod draft_passes;
#[cfg(test)]
mod drafts;
#[cfg(test)]
mod frame;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod host;
#[cfg(test)]
mod masks;
#[cfg(test)]
mod mixtures;
#[cfg(test)]
mod ngram;
#[cfg(test)]
mod options;
#[cfg(test)]
mod publish;
#[cfg(test)]
mod recurrence;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod sampling;
#[cfg(test)]
mod sequence;
#[cfg(test)]
mod stream;
