//! `xtfs quota`: what users, groups and whole volumes use and may use.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use nix::unistd::{Group, User};
use serde_json::json;
use xtfs_client::admin::Admin;
use xtfs_protocol::quota::{QuotaEntry, QuotaLimits, QuotaMismatch, QuotaSubject, QuotaUsage};

use super::{Process, block_on};
use crate::output;
use crate::reach::Where;
use crate::sizes::{self, human};

/// Limit what users, groups and whole volumes may use
///
/// Counted are the sizes of files and symbolic link targets, holes included, and inodes. Above a
/// soft limit there is a warning, in the log of the MRC and in the list. What would exceed a hard
/// limit fails with EDQUOT, for every user, root too; where a limit is lowered below what is in
/// use, only what makes it less is allowed.
#[derive(Debug, Subcommand)]
pub enum Quota {
    List(List),
    Set(Set),
    Check(Check),
}

/// List limits and usage
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
        xtfs quota list --cell /etc/xtfs home
    Of a running or stopped `xtfs up`, for programs:
        xtfs quota list --data /var/lib/xtfs main --json")]
pub struct List {
    #[command(flatten)]
    place: Where,
    /// Volume
    volume: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Set limits; those that are not named stay as they are
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    At most 10 GiB and 100000 inodes for a user, with a warning from 8 GiB on:
        xtfs quota set --cell /etc/xtfs home user:alice --bytes 10G --soft-bytes 8G --inodes 100000
    At most 1 TiB for everything in the volume, which df shows as its size:
        xtfs quota set --cell /etc/xtfs home volume --bytes 1T
    No limit on bytes any more:
        xtfs quota set --cell /etc/xtfs home group:staff --bytes none")]
pub struct Set {
    #[command(flatten)]
    place: Where,
    /// Volume
    volume: String,
    /// Whom it binds: volume, user:NAME, user:UID, group:NAME or group:GID
    #[arg(value_parser = subject)]
    subject: QuotaSubject,
    /// Most bytes, or none
    #[arg(long, value_name = "SIZE", value_parser = size_limit)]
    bytes: Option<Limit>,
    /// Bytes from which on there is a warning, or none
    #[arg(long, value_name = "SIZE", value_parser = size_limit)]
    soft_bytes: Option<Limit>,
    /// Most inodes, or none
    #[arg(long, value_name = "N", value_parser = count_limit)]
    inodes: Option<Limit>,
    /// Inodes from which on there is a warning, or none
    #[arg(long, value_name = "N", value_parser = count_limit)]
    soft_inodes: Option<Limit>,
}

/// Count everything and compare it with the recorded usage
///
/// Exits with 2 when something is recorded wrongly.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
        xtfs quota check --cell /etc/xtfs home")]
pub struct Check {
    #[command(flatten)]
    place: Where,
    /// Volume
    volume: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A limit as it is typed: a number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit(Option<u64>);

/// Something is recorded wrongly.
const WRONG_EXIT: u8 = 2;

impl Quota {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        let place = match &self {
            Self::List(list) => &list.place,
            Self::Set(set) => &set.place,
            Self::Check(check) => &check.place,
        };
        block_on(async {
            let reach = place.reach().await?;
            let admin = reach.admin();
            let done = match &self {
                Self::List(list) => list.run(&admin).await,
                Self::Set(set) => set.run(&admin).await,
                Self::Check(check) => check.run(&admin).await,
            };
            let closed = reach.close().await;
            let code = done?;
            closed.map(|()| code)
        })?
    }
}

impl List {
    async fn run(&self, admin: &Admin) -> Result<ExitCode> {
        let entries = admin.quotas(&self.volume).await?;
        if self.json {
            let entries: Vec<_> = entries.iter().map(entry_json).collect();
            output::print_json(&entries)?;
        } else {
            output::print(&table(&entries))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Set {
    async fn run(&self, admin: &Admin) -> Result<ExitCode> {
        let entries = admin.quotas(&self.volume).await?;
        let known = entries.iter().find(|entry| entry.subject == self.subject);
        let old = known.map(|entry| entry.limits).unwrap_or_default();
        let limits = QuotaLimits {
            bytes_soft: self.soft_bytes.map_or(old.bytes_soft, |limit| limit.0),
            bytes_hard: self.bytes.map_or(old.bytes_hard, |limit| limit.0),
            inodes_soft: self.soft_inodes.map_or(old.inodes_soft, |limit| limit.0),
            inodes_hard: self.inodes.map_or(old.inodes_hard, |limit| limit.0),
        };
        if limits == old {
            bail!("nothing to change: name a limit, such as --bytes 10G");
        }
        admin.set_quota(&self.volume, self.subject, limits).await?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Check {
    async fn run(&self, admin: &Admin) -> Result<ExitCode> {
        let (inodes, wrong) = admin.check_quotas(&self.volume).await?;
        if self.json {
            let wrong: Vec<_> = wrong.iter().map(mismatch_json).collect();
            output::print_json(&json!({ "inodes": inodes, "wrong": wrong }))?;
        } else {
            output::print(&format!(
                "{inodes} inodes counted, {} subjects wrong",
                wrong.len()
            ))?;
            for QuotaMismatch {
                subject,
                recorded,
                counted,
            } in &wrong
            {
                let name = shown(*subject);
                output::print(&format!(
                    "{name}: {} bytes in {} inodes recorded, {} in {} counted",
                    recorded.bytes, recorded.inodes, counted.bytes, counted.inodes
                ))?;
            }
        }
        Ok(if wrong.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(WRONG_EXIT)
        })
    }
}

fn subject(text: &str) -> Result<QuotaSubject, String> {
    let unknown = |kind: &str, name: &str| format!("{kind} {name:?} is not known on this machine");
    match text.split_once(':') {
        None if text == "volume" => Ok(QuotaSubject::Volume),
        Some(("user", name)) => {
            let id = || {
                User::from_name(name)
                    .ok()
                    .flatten()
                    .map(|user| user.uid.as_raw())
            };
            let id = name.parse().ok().or_else(id);
            id.map(QuotaSubject::User)
                .ok_or_else(|| unknown("user", name))
        }
        Some(("group", name)) => {
            let id = || {
                Group::from_name(name)
                    .ok()
                    .flatten()
                    .map(|group| group.gid.as_raw())
            };
            let id = name.parse().ok().or_else(id);
            id.map(QuotaSubject::Group)
                .ok_or_else(|| unknown("group", name))
        }
        _ => Err("not volume, user:NAME or group:NAME".to_owned()),
    }
}

/// A subject with the name that this machine has for it.
fn shown(subject: QuotaSubject) -> String {
    let name = match subject {
        QuotaSubject::Volume => None,
        QuotaSubject::User(uid) => User::from_uid(uid.into()).ok().flatten().map(|u| u.name),
        QuotaSubject::Group(gid) => Group::from_gid(gid.into()).ok().flatten().map(|g| g.name),
    };
    match (subject, name) {
        (QuotaSubject::User(_), Some(name)) => format!("user:{name}"),
        (QuotaSubject::Group(_), Some(name)) => format!("group:{name}"),
        _ => subject.to_string(),
    }
}

fn size_limit(text: &str) -> Result<Limit, String> {
    limit(text, sizes::parse)
}

fn count_limit(text: &str) -> Result<Limit, String> {
    limit(text, |text| {
        text.parse()
            .map_err(|_| format!("{text:?} is not a number"))
    })
}

fn limit(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    parse(text).map(|number| Limit(Some(number)))
}

fn table(entries: &[QuotaEntry]) -> comfy_table::Table {
    let mut table = output::table(&[
        "subject", "bytes", "soft", "hard", "inodes", "soft", "hard", "",
    ]);
    let size = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), human);
    let count = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for QuotaEntry {
        subject,
        limits,
        usage,
    } in entries
    {
        let warning = if usage.is_above_soft(limits) {
            "above soft limit"
        } else {
            ""
        };
        table.add_row([
            shown(*subject),
            human(usage.bytes),
            size(limits.bytes_soft),
            size(limits.bytes_hard),
            usage.inodes.to_string(),
            count(limits.inodes_soft),
            count(limits.inodes_hard),
            warning.to_owned(),
        ]);
    }
    table
}

fn usage_json(usage: &QuotaUsage) -> serde_json::Value {
    json!({ "bytes": usage.bytes, "inodes": usage.inodes })
}

fn entry_json(entry: &QuotaEntry) -> serde_json::Value {
    json!({
        "subject": entry.subject.to_string(),
        "usage": usage_json(&entry.usage),
        "bytes_soft": entry.limits.bytes_soft,
        "bytes_hard": entry.limits.bytes_hard,
        "inodes_soft": entry.limits.inodes_soft,
        "inodes_hard": entry.limits.inodes_hard,
        "above_soft": entry.usage.is_above_soft(&entry.limits),
    })
}

fn mismatch_json(mismatch: &QuotaMismatch) -> serde_json::Value {
    json!({
        "subject": mismatch.subject.to_string(),
        "recorded": usage_json(&mismatch.recorded),
        "counted": usage_json(&mismatch.counted),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_and_limits_are_read_as_they_are_typed() {
        assert_eq!(subject("volume"), Ok(QuotaSubject::Volume));
        assert_eq!(subject("user:root"), Ok(QuotaSubject::User(0)));
        assert_eq!(subject("group:77"), Ok(QuotaSubject::Group(77)));
        for text in [
            "",
            "user",
            "user:",
            "user:no such name",
            "volume:1",
            "box:1",
        ] {
            assert!(subject(text).is_err(), "{text}");
        }
        assert_eq!(size_limit("2K"), Ok(Limit(Some(2048))));
        assert_eq!(count_limit("none"), Ok(Limit(None)));
        assert!(count_limit("2K").is_err());
    }
}
