//! The work itself, on plain files of one directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rustix::fs::Advice;

use super::Sizes;
use super::measures::{Group, Measure};
use super::stopwatch::Stopwatch;

const BLOCK_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 1 << 20;

type Rates = Vec<(Measure, f64)>;

/// One group's work in a folder of its own, which disappears with it.
pub struct Workload<'a> {
    folder: tempfile::TempDir,
    sizes: &'a Sizes,
    stop: &'a AtomicBool,
    random: StdRng,
    /// Bytes that do not compress; every block gets a number of its own before it is written, so
    /// that nothing is stored twice.
    chunk: Vec<u8>,
    blocks_written: u64,
}

impl<'a> Workload<'a> {
    /// Makes the folder below `dir`. The same round does the same work everywhere.
    pub fn new(dir: &Path, sizes: &'a Sizes, stop: &'a AtomicBool, round: u32) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(".xtfs-bench-")
            .tempdir_in(dir)?;
        let mut random = StdRng::seed_from_u64(u64::from(round));
        let mut chunk = vec![0; CHUNK_BYTES];
        random.fill_bytes(&mut chunk);
        Ok(Self {
            folder,
            sizes,
            stop,
            random,
            chunk,
            // Different in each round, or the second round would find the blocks of the first.
            blocks_written: u64::from(round) << 40,
        })
    }

    /// Does one group's work.
    pub fn run(&mut self, group: Group) -> io::Result<Rates> {
        match group {
            Group::Data => self.data(),
            Group::Names => self.names(),
            Group::Small => self.small(),
        }
    }

    fn data(&mut self) -> io::Result<Rates> {
        let path = self.folder.path().join("large");
        let bytes = self.sizes.file_bytes.max(CHUNK_BYTES as u64);
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        let mut rates = Rates::new();

        let mut file = File::create_new(&path)?;
        let watch = Stopwatch::start();
        let mut left = bytes;
        while left > 0 {
            self.check_stop()?;
            let length = usize::try_from(left).map_or(CHUNK_BYTES, |n| n.min(CHUNK_BYTES));
            file.write_all(self.fresh(length))?;
            left -= length as u64;
        }
        file.sync_all()?;
        rates.push((Measure::SequentialWrite, watch.rate(mebibytes)));
        drop(file);

        let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
        forget_pages(&file)?;
        let watch = Stopwatch::start();
        self.read_through(&mut file)?;
        rates.push((Measure::SequentialRead, watch.rate(mebibytes)));

        let mut again = File::open(&path)?;
        let watch = Stopwatch::start();
        self.read_through(&mut again)?;
        rates.push((Measure::CachedRead, watch.rate(mebibytes)));
        drop(again);

        let ops = self.sizes.random_ops.max(1);
        rustix::fs::fadvise(&file, 0, None, Advice::Random)?;
        forget_pages(&file)?;
        let mut block = [0; BLOCK_BYTES];
        let watch = Stopwatch::start();
        for _ in 0..ops {
            self.check_stop()?;
            file.read_exact_at(&mut block, self.random_offset(bytes))?;
        }
        rates.push((Measure::RandomRead, watch.rate(ops as f64)));

        let watch = Stopwatch::start();
        for _ in 0..ops {
            self.write_random_block(&file, bytes)?;
        }
        file.sync_all()?;
        rates.push((Measure::RandomWrite, watch.rate(ops as f64)));

        let syncs = self.sizes.fsyncs.max(1);
        let watch = Stopwatch::start();
        for _ in 0..syncs {
            self.write_random_block(&file, bytes)?;
            file.sync_all()?;
        }
        rates.push((Measure::RandomWriteSync, watch.rate(syncs as f64)));
        drop(file);
        fs::remove_file(path)?;
        Ok(rates)
    }

    fn names(&mut self) -> io::Result<Rates> {
        let files = self.sizes.files.max(1);
        let mut rates = Rates::new();
        let mut timed = |this: &Self, measure, op: &dyn Fn(PathBuf) -> io::Result<()>| {
            let watch = Stopwatch::start();
            for number in 0..files {
                this.check_stop()?;
                op(this.file(number))?;
            }
            rates.push((measure, watch.rate(files as f64)));
            io::Result::Ok(())
        };
        timed(self, Measure::Create, &|path| {
            File::create_new(path).map(drop)
        })?;
        timed(self, Measure::Stat, &|path| fs::metadata(path).map(drop))?;
        timed(self, Measure::Open, &|path| File::open(path).map(drop))?;

        let watch = Stopwatch::start();
        let mut entries = 0;
        for entry in fs::read_dir(self.folder.path())? {
            entry?;
            entries += 1;
        }
        let listed = (Measure::Readdir, watch.rate(files as f64));
        if entries != files {
            let text = format!("{files} files were made, but {entries} are listed");
            return Err(io::Error::other(text));
        }

        timed(self, Measure::Unlink, &|path| fs::remove_file(path))?;
        rates.push(listed);
        Ok(rates)
    }

    fn small(&mut self) -> io::Result<Rates> {
        let files = self.sizes.files.max(1);
        let length = usize::try_from(self.sizes.small_bytes)
            .map_or(CHUNK_BYTES, |bytes| bytes.min(CHUNK_BYTES));
        let mut rates = Rates::new();

        let watch = Stopwatch::start();
        for number in 0..files {
            self.check_stop()?;
            let path = self.file(number);
            File::create_new(path)?.write_all(self.fresh(length))?;
        }
        rates.push((Measure::SmallWrite, watch.rate(files as f64)));

        let watch = Stopwatch::start();
        for number in 0..files {
            self.check_stop()?;
            let read = fs::read(self.file(number))?;
            if read.len() != length {
                let text = format!("{length} bytes were written, but {} read", read.len());
                return Err(io::Error::other(text));
            }
        }
        rates.push((Measure::SmallRead, watch.rate(files as f64)));

        let syncs = self.sizes.fsyncs.max(1);
        let watch = Stopwatch::start();
        for number in 0..syncs {
            self.check_stop()?;
            let path = self.folder.path().join(format!("synced-{number}"));
            let mut file = File::create_new(path)?;
            file.write_all(self.fresh(length))?;
            file.sync_all()?;
        }
        rates.push((Measure::SmallWriteSync, watch.rate(syncs as f64)));
        Ok(rates)
    }

    fn file(&self, number: u64) -> PathBuf {
        self.folder.path().join(format!("file-{number}"))
    }

    /// The first bytes of the chunk, with every block made unlike all others.
    fn fresh(&mut self, length: usize) -> &[u8] {
        for block in self.chunk.chunks_mut(BLOCK_BYTES) {
            self.blocks_written = self.blocks_written.wrapping_add(1);
            let number = self.blocks_written.to_le_bytes();
            for (byte, fresh) in block.iter_mut().zip(number) {
                *byte = fresh;
            }
        }
        self.chunk.get(..length).unwrap_or(&self.chunk)
    }

    fn random_offset(&mut self, bytes: u64) -> u64 {
        let blocks = (bytes / BLOCK_BYTES as u64).max(1);
        self.random.random_range(0..blocks) * BLOCK_BYTES as u64
    }

    fn write_random_block(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.check_stop()?;
        let offset = self.random_offset(bytes);
        let number = self.random.random::<u64>().to_le_bytes();
        for (byte, fresh) in self.chunk.iter_mut().zip(number) {
            *byte = fresh;
        }
        file.write_all_at(&self.chunk[..BLOCK_BYTES], offset)
    }

    fn read_through(&self, file: &mut File) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES];
        while file.read(&mut buffer)? > 0 {
            self.check_stop()?;
        }
        Ok(())
    }

    fn check_stop(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }
}

/// Lets the kernel drop the file's pages, so that the next read asks the file system.
fn forget_pages(file: &File) -> io::Result<()> {
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).map_err(Into::into)
}
