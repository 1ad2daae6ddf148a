//! Hostile files: whatever a decoder may meet, also behind a checksum that matches.
//!
//! Each case takes a database (or backup) that the engine made, changes one of its files, most
//! often inside of a checked piece whose checksum is made to match again, and does with it all that
//! one can do with a database. What comes out is an error or an answer; never a panic, and never
//! more memory than a few times the largest piece that the formats allow.
//!
//! `BABU_KV_FUZZ_CASES=N` tries so many cases of each kind instead of a few, from
//! `BABU_KV_FUZZ_SEED=S` on. A failure names its seed, with which it is the first case.

mod allocator;
mod backups;
mod corpus;
mod log;
mod manifest;
mod mutate;
mod numbers;
mod streams;
mod tables;
mod trial;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;
