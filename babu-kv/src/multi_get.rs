//! Many keys at once. They are asked for in order, layer by layer, so that keys that lie together
//! in a table need one look into its index, its filter and a block.

use crate::{
    error::Result,
    keys::full_key,
    memtable::Found,
    slice::Value,
    state::{State, live},
    table::{Table, filter},
};

/// A key that no layer has answered for yet.
struct Wanted {
    key: Vec<u8>,
    hash: u64,
    /// Where its answer goes.
    place: usize,
}

impl State {
    /// The values of keys with their index numbers, as of `sequence`, in the order of the keys.
    pub(crate) fn multi_get<'a>(
        &self,
        keys: impl ExactSizeIterator<Item = (u32, &'a [u8])>,
        sequence: u64,
    ) -> Result<Vec<Option<Value>>> {
        let mut values = vec![None; keys.len()];
        let mut wanted: Vec<Wanted> = keys
            .map(|(index, key)| full_key(index, key))
            .enumerate()
            .map(|(place, key)| Wanted {
                hash: filter::hash(&key),
                key,
                place,
            })
            .collect();
        wanted.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        for memtable in self.memtables() {
            ask(&mut wanted, &mut values, |wanted| {
                let hidden = memtable.covering(&wanted.key, sequence);
                Ok((memtable.get(&wanted.key, sequence), hidden))
            })?;
        }
        let [newest, levels @ ..] = &self.version.levels;
        for table in newest {
            ask_tables(std::slice::from_ref(table), &mut wanted, &mut values)?;
        }
        for tables in levels {
            ask_tables(tables, &mut wanted, &mut values)?;
        }
        Ok(values)
    }
}

/// Asks tables that follow one another without overlap.
fn ask_tables(
    tables: &[std::sync::Arc<Table>],
    wanted: &mut Vec<Wanted>,
    values: &mut [Option<Value>],
) -> Result<()> {
    let mut tables = tables.iter();
    let mut table = tables.next();
    let mut block = None;
    ask(wanted, values, |wanted| {
        while table.is_some_and(|table| table.meta.to <= wanted.key) {
            table = tables.next();
            block = None;
        }
        match table.filter(|table| table.covers(&wanted.key)) {
            Some(table) => table.get_near(&wanted.key, wanted.hash, &mut block),
            None => Ok((None, 0)),
        }
    })
}

/// Asks a layer for all keys that are still wanted; takes away those that it knows something of.
fn ask(
    wanted: &mut Vec<Wanted>,
    values: &mut [Option<Value>],
    mut layer: impl FnMut(&Wanted) -> Result<(Option<Found>, u64)>,
) -> Result<()> {
    let mut result = Ok(());
    wanted.retain(|wanted| {
        if result.is_err() {
            return true;
        }
        match layer(wanted) {
            Ok((None, 0)) => true,
            Ok((found, hidden)) => {
                if let Some(value) = values.get_mut(wanted.place) {
                    *value = live(found, hidden);
                }
                false
            }
            Err(error) => {
                result = Err(error);
                true
            }
        }
    });
    result
}
