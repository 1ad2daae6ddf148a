//! An MRC as its clients and OSDs see it: through calls.

mod service;
mod support;
