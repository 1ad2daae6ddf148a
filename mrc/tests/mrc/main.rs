//! An MRC as its clients and OSDs see it: through calls.

mod deletion;
mod leases;
mod locks;
mod osds;
mod service;
mod sessions;
mod support;
mod trouble;
