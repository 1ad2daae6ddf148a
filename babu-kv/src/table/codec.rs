//! Compression of blocks.
//!
//! Contexts, tables and buffers are kept from block to block: a block has a few KiB, for which
//! making them anew would cost more than the work itself. Nothing here trusts what it unpacks: both
//! decoders check every length against their buffers.

use crate::options::Compression;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use std::{cell::Cell, iter::repeat_n, sync::Arc};
use zstd::zstd_safe::{CCtx, CDict, DCtx, DDict, compress_bound};

pub(crate) const TAG_PLAIN: u8 = 0;
pub(crate) const TAG_LZ4: u8 = 1;
pub(crate) const TAG_ZSTD: u8 = 2;
pub(crate) const TAG_ZSTD_DICTIONARY: u8 = 3;

/// Samples of a dictionary. More cost more time in every table and gain next to nothing.
pub(crate) const SAMPLES_BYTES: usize = 384 << 10;
/// For so many bytes of samples a byte of dictionary, which a table has to earn back.
const SAMPLES_RATIO: usize = 32;
/// Fewer samples make no dictionary that is worth its bytes.
const SAMPLES_MIN: usize = 16;

/// Bytes of content up to which so many packed bytes may unpack, so that a damaged length costs no
/// more memory than the file is worth. LZ4 cannot do more; where zstd would, LZ4 is used.
fn content_bytes_max(packed_bytes: usize) -> usize {
    packed_bytes.saturating_mul(255).saturating_add(64)
}

/// Packs the blocks of one table.
pub(crate) struct Packer {
    compression: Compression,
    lz4: CompressTable,
    zstd: Option<CCtx<'static>>,
    dictionary: Option<CDict<'static>>,
}

impl Packer {
    pub(crate) fn new(compression: Compression) -> Packer {
        let zstd = match compression {
            Compression::Zstd(_) => CCtx::try_create(),
            _ => None,
        };
        Packer {
            compression,
            lz4: CompressTable::default(),
            zstd,
            dictionary: None,
        }
    }

    /// Whether a dictionary helps.
    pub(crate) fn wants_dictionary(&self) -> bool {
        self.zstd.is_some() && self.dictionary.is_none()
    }

    /// Trains a dictionary, with which the blocks after this call are packed; `None` when the
    /// samples make none.
    pub(crate) fn train<'a>(
        &mut self,
        samples: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Option<Vec<u8>> {
        let Compression::Zstd(level) = self.compression else {
            return None;
        };
        if samples.len() < SAMPLES_MIN {
            return None;
        }
        let samples: Vec<&[u8]> = samples.collect();
        let bytes: usize = samples.iter().map(|s| s.len()).sum();
        let dictionary = zstd::dict::from_samples(&samples, bytes / SAMPLES_RATIO).ok()?;
        self.dictionary = Some(CDict::try_create(&dictionary, level)?);
        Some(dictionary)
    }

    /// Appends the packed content to `out` and gives its tag; appends the content itself when
    /// packing does not save an eighth.
    pub(crate) fn pack(&mut self, content: &[u8], out: &mut Vec<u8>) -> u8 {
        let from = out.len();
        let most = match self.compression {
            Compression::None => 0,
            Compression::Lz4 => get_maximum_output_size(content.len()),
            Compression::Zstd(_) => {
                get_maximum_output_size(content.len()).max(compress_bound(content.len()))
            }
        };
        if let Ok(length) = u32::try_from(content.len())
            && most > 0
        {
            out.extend_from_slice(&length.to_le_bytes());
            let body = out.len();
            out.resize(body + most, 0);
            let packed = self.pack_into(content, &mut out[body..]);
            if let Some((tag, n)) = packed.filter(|(_, n)| n + 4 < content.len() / 8 * 7) {
                out.truncate(body + n);
                return tag;
            }
        }
        out.truncate(from);
        out.extend_from_slice(content);
        TAG_PLAIN
    }

    fn pack_into(&mut self, content: &[u8], out: &mut [u8]) -> Option<(u8, usize)> {
        let zstd = match (self.compression, &mut self.zstd, &self.dictionary) {
            (Compression::None, ..) => return None,
            (Compression::Zstd(_), Some(zstd), Some(dictionary)) => {
                let n = zstd.compress_using_cdict(out, content, dictionary);
                n.ok().map(|n| (TAG_ZSTD_DICTIONARY, n))
            }
            (Compression::Zstd(level), Some(zstd), None) => {
                let n = zstd.compress(out, content, level);
                n.ok().map(|n| (TAG_ZSTD, n))
            }
            (Compression::Lz4, ..) | (Compression::Zstd(_), None, _) => None,
        };
        zstd.filter(|(_, n)| content.len() <= content_bytes_max(*n))
            .or_else(|| {
                let n = compress_into_with_table(content, out, &mut self.lz4);
                Some((TAG_LZ4, n.ok()?))
            })
    }
}

/// The dictionary of an open table, ready to unpack with.
pub(crate) struct Dictionary {
    prepared: DDict<'static>,
    bytes: usize,
}

impl Dictionary {
    pub(crate) fn new(bytes: &[u8]) -> Option<Dictionary> {
        let prepared = DDict::try_create(bytes)?;
        let bytes = prepared.sizeof();
        Some(Dictionary { prepared, bytes })
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The content of a packed block; the error says what is wrong with it.
pub(crate) fn unpack(
    packed: &[u8],
    tag: u8,
    length_max: usize,
    dictionary: Option<&Dictionary>,
) -> Result<Arc<[u8]>, &'static str> {
    if tag == TAG_PLAIN {
        return Ok(packed.into());
    }
    let (length, packed) = packed.split_first_chunk().ok_or("the block is too short")?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > length_max.min(content_bytes_max(packed.len())) {
        return Err("the length of the block is out of range");
    }
    let mut content: Arc<[u8]> = repeat_n(0, length).collect();
    // It has one holder yet.
    let out = Arc::get_mut(&mut content).ok_or("the block is in use")?;
    let unpacked = match tag {
        TAG_LZ4 => lz4_flex::block::decompress_into(packed, out).ok(),
        TAG_ZSTD => with_zstd(|zstd| zstd.decompress(out, packed).ok()),
        TAG_ZSTD_DICTIONARY => {
            let dictionary = dictionary.ok_or("the block needs a dictionary and there is none")?;
            with_zstd(|zstd| {
                zstd.decompress_using_ddict(out, packed, &dictionary.prepared)
                    .ok()
            })
        }
        _ => return Err("the tag of the block is unknown"),
    };
    if unpacked == Some(length) {
        Ok(content)
    } else {
        Err("the block does not decompress")
    }
}

/// Calls `f` with the context of this thread. After a failure the next call makes a new one.
fn with_zstd(f: impl FnOnce(&mut DCtx<'static>) -> Option<usize>) -> Option<usize> {
    thread_local! {
        static CONTEXT: Cell<Option<DCtx<'static>>> = const { Cell::new(None) };
    }
    CONTEXT.with(|kept| {
        let mut context = kept.take().or_else(DCtx::try_create)?;
        let result = f(&mut context)?;
        kept.set(Some(context));
        Some(result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    fn contents() -> Vec<Vec<u8>> {
        let words = ["directory", "inode", "owner", "mode", "time", "size"];
        let mut random = StdRng::seed_from_u64(7);
        let mut text = |n: usize| {
            let mut out = Vec::new();
            while out.len() < n {
                out.extend_from_slice(words[random.random_range(0..words.len())].as_bytes());
                out.push(random.random_range(0..250));
            }
            out
        };
        (0..200).map(|n| text(40 + n * 13)).collect()
    }

    fn all() -> Vec<(u8, Packer, Option<Dictionary>)> {
        let mut trained = Packer::new(Compression::Zstd(3));
        let samples = contents();
        let dictionary = trained.train(samples.iter().map(Vec::as_slice)).unwrap();
        vec![
            (TAG_PLAIN, Packer::new(Compression::None), None),
            (TAG_LZ4, Packer::new(Compression::Lz4), None),
            (TAG_ZSTD, Packer::new(Compression::Zstd(1)), None),
            (
                TAG_ZSTD_DICTIONARY,
                trained,
                Some(Dictionary::new(&dictionary).unwrap()),
            ),
        ]
    }

    #[test]
    fn what_is_packed_comes_back() {
        for (expected, mut packer, dictionary) in all() {
            let mut smaller = 0;
            for content in contents() {
                let mut out = b"before".to_vec();
                let tag = packer.pack(&content, &mut out);
                let packed = out.strip_prefix(b"before").unwrap();
                let unpacked = unpack(packed, tag, 1 << 20, dictionary.as_ref()).unwrap();
                assert_eq!(&*unpacked, content.as_slice());
                assert!(packed.len() <= content.len());
                smaller += usize::from(tag == expected && packed.len() < content.len());
                assert!(tag == TAG_PLAIN || unpack(packed, tag, content.len() - 1, None).is_err());
                if tag != TAG_PLAIN {
                    // Not to be made up for with zeros.
                    let mut claims = packed.to_vec();
                    let more = content.len() as u32 + 1;
                    claims[..4].copy_from_slice(&more.to_le_bytes());
                    assert!(unpack(&claims, tag, 1 << 20, dictionary.as_ref()).is_err());
                }
            }
            assert!(expected == TAG_PLAIN || smaller > 100, "{expected}");
        }
    }

    /// Whatever length a block claims to have.
    #[test]
    fn memory_for_a_block_is_bounded_by_what_there_is_of_it() {
        for (tag, mut packer, dictionary) in all() {
            let mut packed = Vec::new();
            let zeros = vec![0; 1 << 20];
            let used = packer.pack(&zeros, &mut packed);
            assert_eq!(used == TAG_PLAIN, tag == TAG_PLAIN);
            assert!(packed.len() == zeros.len() || packed.len() < 5000);
            let unpacked = unpack(&packed, used, 1 << 20, dictionary.as_ref()).unwrap();
            assert_eq!(&*unpacked, zeros.as_slice());
            if tag != TAG_PLAIN {
                let mut claims = packed[..40].to_vec();
                claims[..4].copy_from_slice(&(100u32 << 20).to_le_bytes());
                let refused = unpack(&claims, tag, 128 << 20, dictionary.as_ref());
                assert_eq!(
                    refused.err(),
                    Some("the length of the block is out of range")
                );
            }
        }
    }

    #[test]
    fn a_dictionary_makes_small_blocks_smaller() {
        let size = |packer: &mut Packer| {
            let mut out = Vec::new();
            for content in contents().iter().take(60) {
                packer.pack(content, &mut out);
            }
            out.len()
        };
        let [_, _, mut plain, mut trained] = <[_; 4]>::try_from(all()).ok().unwrap();
        let (plain, trained) = (size(&mut plain.1), size(&mut trained.1));
        assert!(trained * 10 < plain * 9, "{trained} of {plain} bytes");
    }

    /// The checksum is not what keeps damaged bytes from doing harm.
    #[test]
    fn hostile_bytes_give_errors_or_other_bytes() {
        let mut random = StdRng::seed_from_u64(9);
        for (_, mut packer, dictionary) in all() {
            for content in contents().iter().step_by(19) {
                let mut packed = Vec::new();
                let tag = packer.pack(content, &mut packed);
                for at in 0..packed.len() {
                    let mut harmed = packed.clone();
                    harmed[at] ^= 1 << random.random_range(0..8);
                    let _ = unpack(&harmed, tag, 1 << 16, dictionary.as_ref());
                    let _ = unpack(&packed[..at], tag, 1 << 16, dictionary.as_ref());
                    for other in 0..5 {
                        let _ = unpack(&harmed[at..], other, 1 << 16, dictionary.as_ref());
                    }
                }
            }
            let mut noise = vec![0; 300];
            for tag in 0..5 {
                for _ in 0..500 {
                    random.fill(noise.as_mut_slice());
                    noise[..4].copy_from_slice(&random.random_range(0..2000u32).to_le_bytes());
                    let _ = unpack(&noise, tag, 1 << 16, dictionary.as_ref());
                }
            }
        }
        assert!(unpack(&[0xff; 20], TAG_LZ4, 1 << 16, None).is_err());
        assert!(unpack(&[1, 0, 0, 0], 9, 1 << 16, None).is_err());
    }
}
