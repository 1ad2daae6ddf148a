//! Folders, stores, and whose turn it is.

use crate::{
    engine::{Engine, Setup},
    scale::Scale,
    workload::Files,
};
use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A run.
pub struct Bench<'a> {
    pub engines: &'a [&'a dyn Engine],
    pub scale: Scale,
    pub scratch: Scratch,
}

/// A folder that is removed with all that is in it.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(dir: &Path, name: &str) -> Result<Scratch> {
        let path = dir.join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is seen by whoever owns the folder around it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Bench<'_> {
    /// A folder for the stores of a row.
    pub fn folder(&self, name: &str) -> Result<Scratch> {
        Scratch::new(&self.scratch.0, name)
    }

    /// Opens the store of each engine in a folder; new ones where there are none.
    pub fn open(&self, folder: &Scratch, setup: &Setup) -> Result<Vec<Files>> {
        let opened = self.engines.iter().map(|engine| {
            let dir = folder.0.join(engine.name());
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
            Ok(Files {
                engine: engine.name(),
                store: engine.open(&dir, setup)?,
            })
        });
        opened.collect()
    }

    /// Each store once in each round, beginning with another one each time.
    pub fn turns<'s>(&self, stores: &'s [Files]) -> impl Iterator<Item = (u64, &'s Files)> {
        turns(self.scale.rounds, stores)
    }

    /// Closes the stores of a row.
    pub fn close(&self, stores: Vec<Files>) -> Result<()> {
        stores.into_iter().try_for_each(|files| files.store.close())
    }
}

/// Each item once in each round, beginning with another one each time.
pub fn turns<T>(rounds: u64, items: &[T]) -> impl Iterator<Item = (u64, &T)> {
    (0..rounds).flat_map(move |round| {
        let first = round as usize % items.len().max(1);
        let turn = items.iter().cycle().skip(first).take(items.len());
        turn.map(move |item| (round, item))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_has_its_turn_in_each_round() {
        let turns: Vec<(u64, &char)> = turns(3, &['a', 'b']).collect();
        assert_eq!(
            turns,
            [
                (0, &'a'),
                (0, &'b'),
                (1, &'b'),
                (1, &'a'),
                (2, &'a'),
                (2, &'b')
            ]
        );
    }
}
