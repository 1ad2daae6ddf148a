//! `xtfs mkfs`: makes a volume.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use xtfs_client::admin::Admin;
use xtfs_layout::Layout;
use xtfs_protocol::Code;
use xtfs_protocol::directory::ServiceState;

use super::{Process, block_on};
use crate::output;
use crate::reach::Where;
use crate::sizes;

/// Make a volume
///
/// The new volume's root directory belongs to whoever makes it. Its files are cut into objects of
/// one size, which lie in turn on as many OSDs as the width says.
#[derive(Debug, Args)]
#[command(after_long_help = "\
EXAMPLES:
    A volume whose files are striped over three OSDs:
        xtfs mkfs --cell /etc/xtfs home --width 3
    With small objects:
        xtfs mkfs --cell /etc/xtfs mail --object-size 64K")]
pub struct Mkfs {
    #[command(flatten)]
    place: Where,
    /// Name: 1 to 64 of A-Z a-z 0-9 . _ -
    name: String,
    /// OSDs that each file is striped over [default: all that are online]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    width: Option<u8>,
    /// Size of an object: a power of two from 4K to 16M
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = object_size)]
    object_size: u32,
}

impl Mkfs {
    pub fn run(self, process: &Process) -> Result<ExitCode> {
        process.log_as_tool()?;
        block_on(async {
            let reach = self.place.reach().await?;
            let made = self.make(&reach.admin()).await;
            let closed = reach.close().await;
            made.and(closed)
        })??;
        Ok(ExitCode::SUCCESS)
    }

    async fn make(&self, admin: &Admin) -> Result<()> {
        let width = match self.width {
            Some(width) => width,
            None => online_osds(admin).await?,
        };
        let layout = Layout {
            object_size: self.object_size,
            ..Layout::striped(width)
        };
        let owner = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        match admin.create_volume(&self.name, layout, owner, 0o755).await {
            Ok(volume) => {
                output::print(&format!("volume {} made: {}", volume.name, volume.id))?;
                Ok(())
            }
            Err(error) if error.code == Code::Exists => bail!(
                "volume {}: exists already; `xtfs rmfs {0}` removes it with all its files",
                self.name
            ),
            Err(error) => Err(error).with_context(|| format!("volume {}", self.name)),
        }
    }
}

async fn online_osds(admin: &Admin) -> Result<u8> {
    let osds = admin.osds().await?;
    let online = osds
        .iter()
        .filter(|osd| osd.state == ServiceState::Online)
        .count();
    if online == 0 {
        bail!("no OSD is online; start one with `xtfs osd`");
    }
    Ok(u8::try_from(online).unwrap_or(u8::MAX))
}

fn object_size(text: &str) -> Result<u32, String> {
    let bytes = sizes::parse(text)?;
    let object_size = u32::try_from(bytes).unwrap_or(u32::MAX);
    let layout = Layout {
        object_size,
        ..Layout::striped(1)
    };
    layout.check().map_err(|error| error.to_string())?;
    Ok(object_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_size_is_a_power_of_two_within_the_bounds() {
        assert_eq!(object_size("64K"), Ok(64 << 10));
        for text in ["5000", "2K", "32M", "4G", "x"] {
            assert!(object_size(text).is_err(), "{text}");
        }
    }
}
