//! The commands of `babu-kv backup`.

use crate::{
    commands::print_json,
    place,
    progress::{Bar, bytes_of},
    stream,
};
use anyhow::{Context, Result, anyhow, bail};
use babu_kv::{
    backup::{self, Backup},
    fs::RealFs,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

#[derive(Subcommand)]
pub enum Command {
    /// Makes a backup of a database, in a folder or as a stream.
    ///
    /// The folder may hold earlier backups: only files that are not there yet are copied. Each backup
    /// is complete by itself.
    ///
    /// The database may be open in another process, which may write, flush and compact meanwhile: the
    /// backup holds what was committed at one instant after this command began. All files of that
    /// instant are opened first (a file descriptor for each table); once open they stay readable,
    /// though the owner removes them. When the owner replaces them faster than they can be opened,
    /// sixteen times in a row, the command fails and nothing is written. It has what the owner wrote,
    /// also what the owner has not synced yet.
    #[command(after_help = "Examples:\n  \
            babu-kv backup create /var/lib/db /mnt/safe/db\n  \
            babu-kv backup create /var/lib/db /mnt/safe/db --rate-max 20M\n  \
            babu-kv backup create /var/lib/db --stream - | ssh far babu-kv backup receive safe --stream -\n  \
            ssh far babu-kv backup list safe --files > there\n  \
            babu-kv backup create /var/lib/db --stream - --have there | ssh far ...\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 the database is damaged")]
    Create {
        /// Folder of the database.
        dir: PathBuf,
        /// Folder of the backups, created when missing.
        #[arg(required_unless_present = "stream", conflicts_with = "stream")]
        destination: Option<PathBuf>,
        #[command(flatten)]
        out: Out,
    },
    /// What backups are in a folder, from old to new.
    ///
    /// Only manifests are read: `backup verify` tells whether a backup is whole.
    #[command(after_help = "Examples:\n  babu-kv backup list /mnt/safe/db\n  \
            babu-kv backup list /mnt/safe/db --files > there\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 a manifest is damaged")]
    List {
        /// Folder of the backups.
        folder: PathBuf,
        /// Print the names of all content files instead, for `--have`.
        #[arg(long, conflicts_with = "json")]
        files: bool,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Reads all files of a backup and compares them with their checksums.
    #[command(after_help = "Examples:\n  babu-kv backup verify /mnt/safe/db\n  \
            babu-kv backup verify /mnt/safe/db --number 7 --json\n\n\
            Exit codes: 0 all is whole, 1 it could not be looked at, 2 damage")]
    Verify {
        /// Folder of the backups.
        folder: PathBuf,
        /// This one only; all without it.
        #[arg(long, value_name = "N")]
        number: Option<u64>,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Makes a database of a backup.
    ///
    /// Each file is checked on the way. After an error the destination is empty; after a kill it is
    /// not taken for a database.
    #[command(after_help = "Examples:\n  \
            babu-kv backup restore /var/lib/db --from /mnt/safe/db\n  \
            babu-kv backup restore /var/lib/db --from /mnt/safe/db --number 7\n  \
            babu-kv backup restore /var/lib/db --stream full.backup\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 the backup is damaged")]
    Restore {
        /// Folder of the new database: missing or empty.
        destination: PathBuf,
        /// Folder of the backups.
        #[arg(
            long,
            value_name = "FOLDER",
            required_unless_present = "stream",
            conflicts_with = "stream"
        )]
        from: Option<PathBuf>,
        /// Which one; the newest without it.
        #[arg(long, value_name = "N", conflicts_with = "stream")]
        number: Option<u64>,
        /// A full stream instead of a folder; `-` for standard input.
        #[arg(long, value_name = "FILE")]
        stream: Option<PathBuf>,
        /// At most so many bytes each second, as in 500000, 64K, 20M.
        #[arg(long, value_name = "BYTES", value_parser = bytes_of)]
        rate_max: Option<u64>,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Writes a backup of a folder as a stream.
    #[command(after_help = "Examples:\n  \
            babu-kv backup send /mnt/safe/db --stream full.backup\n  \
            babu-kv backup send /mnt/safe/db --number 7 --stream - | gzip > 7.gz\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 the backup is damaged")]
    Send {
        /// Folder of the backups.
        folder: PathBuf,
        /// Which one; the newest without it.
        #[arg(long, value_name = "N")]
        number: Option<u64>,
        #[command(flatten)]
        out: Out,
    },
    /// Takes a stream into a folder, as its newest backup.
    ///
    /// A stream that is torn or damaged makes no backup; what came whole does not need to come again.
    #[command(after_help = "Example:\n  \
            ssh near babu-kv backup create /var/lib/db --stream - | babu-kv backup receive safe --stream -\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 the stream is damaged")]
    Receive {
        /// Folder of the backups, created when missing.
        folder: PathBuf,
        /// The stream; `-` for standard input.
        #[arg(long, value_name = "FILE")]
        stream: PathBuf,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Removes all but the newest backups, and the files that only the others needed.
    #[command(
        after_help = "Example:\n  babu-kv backup prune /mnt/safe/db --keep 14\n\n\
            Exit codes: 0 done, 1 it could not be done, 2 a manifest that stays is damaged: nothing \
            was removed"
    )]
    Prune {
        /// Folder of the backups.
        folder: PathBuf,
        /// How many stay, at least 1.
        #[arg(long, value_name = "N")]
        keep: usize,
        /// Print JSON instead of text.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct Out {
    /// Write a stream to this new file; `-` for standard output.
    #[arg(long, value_name = "FILE")]
    stream: Option<PathBuf>,
    /// Leave out the content files that are named in this file, one a line: what the receiver has,
    /// by `backup list --files`. Without it the stream is full.
    #[arg(long, value_name = "FILE", requires = "stream")]
    have: Option<PathBuf>,
    /// At most so many bytes each second, as in 500000, 64K, 20M.
    #[arg(long, value_name = "BYTES", value_parser = bytes_of)]
    rate_max: Option<u64>,
    /// Print JSON instead of text; not with `--stream -`.
    #[arg(long)]
    json: bool,
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Create {
            dir,
            destination,
            out,
        } => create(&dir, destination.as_deref(), &out),
        Command::List {
            folder,
            files,
            json,
        } => list(&folder, files, json),
        Command::Verify {
            folder,
            number,
            json,
        } => verify(&folder, number, json),
        Command::Restore {
            destination,
            from,
            number,
            stream,
            rate_max,
            json,
        } => {
            let bar = Bar::new("restore", rate_max);
            let made = match (from, stream) {
                (Some(folder), _) => {
                    let number = chosen(&folder, number)?;
                    backup::restore_with(&RealFs, &folder, number, &destination, &mut |p| {
                        bar.at(p)
                    })?
                }
                (None, Some(path)) => stream::input(&path, |input| {
                    Ok(backup::restore_stream(
                        &RealFs,
                        input,
                        &destination,
                        &mut |p| bar.at(p),
                    )?)
                })?,
                (None, None) => bail!("either --from or --stream is needed"),
            };
            drop(bar);
            say(
                &made,
                json,
                &format!("restored to {}", destination.display()),
            )
        }
        Command::Send {
            folder,
            number,
            out,
        } => send(&folder, number, &out),
        Command::Receive {
            folder,
            stream,
            json,
        } => {
            let bar = Bar::new("receive", None);
            let made = stream::input(&stream, |input| {
                Ok(backup::receive(&RealFs, input, &folder, &mut |p| {
                    bar.at(p)
                })?)
            })?;
            drop(bar);
            say(&made, json, &format!("received in {}", folder.display()))
        }
        Command::Prune { folder, keep, json } => prune(&folder, keep, json),
    }
}

/// The number asked for, or the newest.
fn chosen(folder: &Path, number: Option<u64>) -> Result<u64> {
    if let Some(number) = number {
        return Ok(number);
    }
    let newest = backups(folder)?.pop();
    let newest = newest.ok_or_else(|| anyhow!("there is no backup in {}", folder.display()))?;
    Ok(newest?.number)
}

fn backups(folder: &Path) -> Result<Vec<babu_kv::Result<Backup>>> {
    fs::metadata(folder).with_context(|| format!("no backups in {}", folder.display()))?;
    Ok(backup::list(&RealFs, folder)?)
}

fn have(out: &Out) -> Result<BTreeSet<String>> {
    let Some(path) = &out.have else {
        return Ok(BTreeSet::new());
    };
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.lines().map(str::to_string).collect())
}

fn create(dir: &Path, destination: Option<&Path>, out: &Out) -> Result<()> {
    let database = place::look(dir)?;
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = time.ok().map(|time| time.as_secs());
    let bar = Bar::new("backup", out.rate_max);
    let made = match (destination, &out.stream) {
        (Some(destination), _) => database.backup_with(destination, time, &mut |p| bar.at(p))?,
        (None, Some(path)) => {
            let have = have(out)?;
            stream::output(path, |output| {
                Ok(database.backup_to(output, &have, time, &mut |p| bar.at(p))?)
            })?
        }
        (None, None) => bail!("either a folder or --stream is needed"),
    };
    drop(bar);
    say_sent(&made, out)
}

fn send(folder: &Path, number: Option<u64>, out: &Out) -> Result<()> {
    let path = out.stream.as_deref().context("--stream is needed")?;
    let number = chosen(folder, number)?;
    let have = have(out)?;
    let bar = Bar::new("send", out.rate_max);
    let made = stream::output(path, |output| {
        Ok(backup::send(
            &RealFs,
            folder,
            number,
            &have,
            output,
            &mut |p| bar.at(p),
        )?)
    })?;
    drop(bar);
    say_sent(&made, out)
}

fn say_sent(made: &Backup, out: &Out) -> Result<()> {
    match &out.stream {
        // There is the stream.
        Some(path) if path == Path::new("-") => Ok(()),
        _ => say(made, out.json, "done"),
    }
}

fn as_json(backup: &Backup) -> Value {
    json!({
        "number": backup.number, "time": backup.time, "sequence": backup.sequence,
        "bytes": backup.bytes(), "bytes_new": backup.bytes_new, "files": backup.files.len(),
    })
}

fn say(made: &Backup, json: bool, what: &str) -> Result<()> {
    if json {
        return print_json(&as_json(made));
    }
    writeln!(
        io::stdout(),
        "{what}: backup {} of {} operations, {} bytes in {} files, {} bytes new",
        made.number,
        made.sequence,
        made.bytes(),
        made.files.len(),
        made.bytes_new
    )?;
    Ok(())
}

fn list(folder: &Path, files: bool, json: bool) -> Result<()> {
    let mut out = io::stdout().lock();
    if files {
        for name in backup::contents(&RealFs, folder)? {
            writeln!(out, "{name}")?;
        }
        return Ok(());
    }
    let mut damage = None;
    let mut whole = Vec::new();
    for backup in backups(folder)? {
        match backup {
            Ok(backup) => whole.push(backup),
            Err(error) => {
                eprintln!("babu-kv: {error}");
                damage = Some(error);
            }
        }
    }
    if json {
        drop(out);
        print_json(&whole.iter().map(as_json).collect())?;
    } else {
        for backup in &whole {
            writeln!(
                out,
                "{}\tseconds since 1970: {}\toperations: {}\tbytes: {}\tnew: {}",
                backup.number,
                backup
                    .time
                    .map_or("unknown".into(), |time| time.to_string()),
                backup.sequence,
                backup.bytes(),
                backup.bytes_new
            )?;
        }
    }
    match damage {
        Some(error) => Err(anyhow!(error).context("not all backups could be listed")),
        None => Ok(()),
    }
}

fn verify(folder: &Path, number: Option<u64>, json: bool) -> Result<()> {
    let numbers: Vec<babu_kv::Result<u64>> = match number {
        Some(number) => vec![Ok(number)],
        None => {
            let all = backups(folder)?.into_iter();
            all.map(|backup| backup.map(|backup| backup.number))
                .collect()
        }
    };
    let (mut reports, mut damage) = (Vec::new(), Vec::new());
    for number in numbers {
        let bar = Bar::new("verify", None);
        let report = number.and_then(|number| {
            backup::verify_with(&RealFs, folder, number, &mut |progress| bar.at(progress))
        });
        drop(bar);
        match report {
            Ok(mut report) => {
                damage.append(&mut report.damage);
                reports.push(report.backup);
            }
            Err(error) if number_is_damaged(&error) => damage.push(error),
            Err(error) => return Err(error.into()),
        }
    }
    let lines: Vec<String> = damage.iter().map(ToString::to_string).collect();
    if json {
        print_json(&json!({
            "damage": lines, "backups": reports.iter().map(as_json).collect::<Vec<_>>(),
        }))?;
    } else if damage.is_empty() {
        writeln!(io::stdout(), "no damage: {} backups", reports.len())?;
    }
    match damage.into_iter().next() {
        Some(first) if lines.len() == 1 => Err(first.into()),
        Some(first) => {
            let others = lines.get(1..).unwrap_or_default();
            others.iter().for_each(|line| eprintln!("babu-kv: {line}"));
            Err(first.into())
        }
        None => Ok(()),
    }
}

fn number_is_damaged(error: &babu_kv::Error) -> bool {
    matches!(error, babu_kv::Error::Corrupt { .. })
}

fn prune(folder: &Path, keep: usize, json: bool) -> Result<()> {
    fs::metadata(folder).with_context(|| format!("no backups in {}", folder.display()))?;
    let pruned = backup::prune(&RealFs, folder, keep)?;
    if json {
        return print_json(&json!({
            "backups": pruned.backups, "files": pruned.files, "bytes": pruned.bytes,
        }));
    }
    writeln!(
        io::stdout(),
        "removed {} backups and {} files with {} bytes",
        pruned.backups,
        pruned.files,
        pruned.bytes
    )?;
    Ok(())
}
