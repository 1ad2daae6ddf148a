//! Where a new file goes: a pure choice among the OSDs that are there.

use xtfs_layout::Layout;
use xtfs_protocol::ids::ServiceId;
use xtfs_protocol::meta::Placement;
use xtfs_protocol::object::OsdSpace;
use xtfs_protocol::{Code, Error, Result};

/// An OSD that answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    pub id: ServiceId,
    /// What it said last; all zeros when it has not said anything yet.
    pub space: OsdSpace,
}

impl Candidate {
    /// Bytes that it may take; one that was not heard of since the start is given the benefit of
    /// the doubt.
    const fn free_bytes(&self) -> u64 {
        if self.space.total_bytes == 0 {
            u64::MAX
        } else {
            self.space.free_bytes
        }
    }
}

/// Chooses the OSDs of a new file: those with room, of these the roomier half or as many as are
/// needed, and of these a row that begins somewhere else with every `rotation`.
pub(crate) fn choose(online: &[Candidate], layout: &Layout, rotation: u64) -> Result<Placement> {
    let width = usize::from(layout.width);
    if online.len() < width {
        let context = format!("a new file needs {width} OSDs, {} are online", online.len());
        return Err(Error::retryable(Code::Unreachable, context, 500));
    }
    let mut roomy: Vec<_> = online.iter().filter(|osd| osd.free_bytes() > 0).collect();
    if roomy.len() < width {
        let count = roomy.len();
        let context = format!("a new file needs {width} OSDs with room, {count} have some");
        return Err(Error::new(Code::NoSpace, context));
    }
    roomy.sort_by_key(|osd| (std::cmp::Reverse(osd.free_bytes()), osd.id));
    let half = roomy.first().map_or(0, |osd| osd.free_bytes() / 2);
    let wanted = roomy.iter().filter(|osd| osd.free_bytes() >= half).count();
    roomy.truncate(wanted.max(width));
    roomy.sort_by_key(|osd| osd.id);
    let start = rotation % (roomy.len().max(1) as u64);
    let osds = roomy.iter().cycle().skip(start as usize).take(width);
    Ok(Placement {
        layout: *layout,
        view: 1,
        osds: osds.map(|osd| osd.id).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn osds(free: &[u64]) -> Vec<Candidate> {
        let candidate = |(number, free_bytes): (usize, &u64)| Candidate {
            id: ServiceId([number as u8; 16]),
            space: OsdSpace {
                total_bytes: 1000,
                free_bytes: *free_bytes,
                ..OsdSpace::default()
            },
        };
        free.iter().enumerate().map(candidate).collect()
    }

    fn numbers(placement: &Placement) -> Vec<u8> {
        placement.osds.iter().map(|id| id.0[0]).collect()
    }

    #[test]
    fn files_rotate_over_all_osds_and_use_none_twice() {
        let online = osds(&[900, 900, 900, 900]);
        let layout = Layout::striped(3);
        let mut firsts = BTreeSet::new();
        for rotation in 0..4 {
            let chosen = numbers(&choose(&online, &layout, rotation).unwrap());
            let distinct: BTreeSet<_> = chosen.iter().copied().collect();
            assert_eq!(distinct.len(), 3);
            firsts.insert(chosen[0]);
        }
        assert_eq!(firsts.len(), 4);
    }

    #[test]
    fn nearly_full_osds_are_left_alone_while_others_suffice() {
        let online = osds(&[900, 10, 800, 0]);
        for rotation in 0..8 {
            let narrow = choose(&online, &Layout::striped(2), rotation).unwrap();
            assert!(!numbers(&narrow).contains(&1));
            let wide = choose(&online, &Layout::striped(3), rotation).unwrap();
            assert!(numbers(&wide).contains(&1));
        }
    }

    #[test]
    fn too_few_osds_and_too_little_room_are_different_errors() {
        let online = osds(&[900, 0, 0]);
        let few = choose(&online, &Layout::striped(4), 0).unwrap_err();
        assert_eq!(few.code, Code::Unreachable);
        assert!(few.context.contains("needs 4 OSDs, 3 are online"), "{few}");
        let full = choose(&online, &Layout::striped(2), 0).unwrap_err();
        assert_eq!(full.code, Code::NoSpace);
    }

    #[test]
    fn an_osd_that_has_not_reported_room_is_tried() {
        let mut online = osds(&[0]);
        online[0].space = OsdSpace::default();
        assert!(choose(&online, &Layout::striped(1), 0).is_ok());
    }
}
