//! The scheduler and the step loop against scripted devices: one program of tests, since most of them share those.

#[path = "../sim/mod.rs"]
mod sim;

mod admission;
mod claims;
mod drafts;
mod masks;
mod parts;
mod simulation;
mod telling;
mod tenants;
mod turns;
mod wiring;
