//! The memory that this process may take: what the system has left, within the limits of its control groups.
//!
//! A container is limited by a control group, of version 1 or 2, and may be one of several, one inside the other: each of
//! them counts. The system's own numbers know nothing of that. Elsewhere than on Linux nothing is known.

use std::fs;
use std::path::{Path, PathBuf};

/// From here on a limit is none: version 1 writes the largest number of whole pages.
const UNLIMITED: u64 = 1 << 60;

/// What is known of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsableMemory {
    /// Bytes of the machine.
    pub total: Option<u64>,
    /// Of these, bytes that are free or can be freed.
    pub available: Option<u64>,
    /// The limit that leaves least, if there is one.
    pub limit: Option<MemoryLimit>,
}

/// A limit of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that the group may use.
    pub bytes: u64,
    /// Bytes that it has left; caches of files can be freed.
    pub left: u64,
}

/// The files of a version of control groups.
struct Version {
    /// Any of them is a limit.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of `memory.stat` with the bytes of files that are cached.
    cached: [&'static str; 2],
}

const V1: Version = Version {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};

const V2: Version = Version {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cached: ["inactive_file", "active_file"],
};

impl UsableMemory {
    /// As it is now.
    pub fn look() -> Self {
        Self::under(Path::new("/"))
    }

    /// The same, with another folder for the root of the file system.
    pub fn under(root: &Path) -> Self {
        let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        Self {
            total: kilobytes(&info, "MemTotal"),
            available: kilobytes(&info, "MemAvailable"),
            limit: tightest(root),
        }
    }

    /// Bytes that may be taken, as far as anything is known.
    pub fn bytes(&self) -> Option<u64> {
        let left = self.limit.map(|limit| limit.left);
        self.available.into_iter().chain(left).min()
    }
}

fn kilobytes(info: &str, key: &str) -> Option<u64> {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

/// Of the limits of this process's groups and of those around them, the one that leaves least.
fn tightest(root: &Path) -> Option<MemoryLimit> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let mounts = mounts.lines().filter_map(Mount::parse);
    let limits = mounts.flat_map(|mount| {
        let top = below(root, mount.point);
        let group = mount.group(&groups).map(|group| below(&top, group));
        // Where the group is not visible, the mount shows what there is of it.
        let group = group
            .filter(|group| group.is_dir())
            .unwrap_or_else(|| top.clone());
        let around = group.ancestors().take_while(|folder| folder.starts_with(&top));
        let limits: Vec<MemoryLimit> = around.filter_map(|folder| mount.version.limit(folder)).collect();
        limits
    });
    limits.min_by_key(|limit| limit.left)
}

/// An absolute path, below another root.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// A hierarchy of control groups in the file system.
struct Mount<'a> {
    version: &'static Version,
    /// The group that is shown at the top.
    shown: &'a str,
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// From a line of `mountinfo`, if it is about memory.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1)?);
        let version = match name {
            "cgroup2" => &V2,
            "cgroup" if options.split(',').any(|option| option == "memory") => &V1,
            _ => return None,
        };
        let mut fields = mount.split(' ').skip(3);
        Some(Self {
            version,
            shown: fields.next()?,
            point: fields.next()?,
        })
    }

    /// This process's group below the mount, by `/proc/self/cgroup`.
    fn group<'g>(&self, groups: &'g str) -> Option<&'g str> {
        let path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let found = if std::ptr::eq(self.version, &V2) {
                number == "0" && controllers.is_empty()
            } else {
                controllers.split(',').any(|controller| controller == "memory")
            };
            found.then_some(path)
        })?;
        let path = path.strip_prefix(self.shown.trim_end_matches('/'))?;
        // A group outside of what this process may see.
        (!path.split('/').any(|part| part == "..")).then_some(path)
    }
}

impl Version {
    fn limit(&self, folder: &Path) -> Option<MemoryLimit> {
        let number = |file: &str| {
            fs::read_to_string(folder.join(file))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        };
        let limits = self.limits.iter().filter_map(|file| number(file));
        let bytes = limits.min().filter(|bytes| *bytes < UNLIMITED)?;
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cached: u64 = self.cached.iter().filter_map(|key| entry(&stat, key)).sum();
        let used = number(self.usage).unwrap_or(0).saturating_sub(cached);
        Some(MemoryLimit {
            bytes,
            left: bytes.saturating_sub(used),
        })
    }
}

/// The number behind a key.
fn entry(stat: &str, key: &str) -> Option<u64> {
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const INFO: &str = "MemTotal:       4194304 kB\nMemFree: 1 kB\nMemAvailable:   2097152 kB\n";
    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    /// A root folder with these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, UsableMemory) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/meminfo", INFO)].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let memory = UsableMemory::under(root.path());
        (root, memory)
    }

    fn mib(memory: &UsableMemory) -> Option<u64> {
        memory.bytes().map(|bytes| bytes / MIB)
    }

    #[test]
    fn without_groups_the_system_decides() {
        let (_root, memory) = machine(&[]);
        assert_eq!((memory.total, mib(&memory)), (Some(4096 * MIB), Some(2048)));
        assert_eq!(memory.limit, None);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(UsableMemory::under(empty.path()).bytes(), None);
    }

    #[test]
    fn a_group_of_version_2_limits_what_is_left() {
        let (_root, memory) = machine(&[
            ("proc/self/cgroup", "0::/app\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/app/memory.max", "943718400\n"),
            ("sys/fs/cgroup/app/memory.high", "max\n"),
            ("sys/fs/cgroup/app/memory.current", "314572800\n"),
            (
                "sys/fs/cgroup/app/memory.stat",
                "anon 1\nfile 9\ninactive_file 104857600\nactive_file 52428800\n",
            ),
        ]);
        let limit = MemoryLimit {
            bytes: 900 * MIB,
            left: 750 * MIB,
        };
        assert_eq!((memory.limit, mib(&memory)), (Some(limit), Some(750)));
    }

    #[test]
    fn the_groups_around_count_and_so_does_throttling() {
        let (_root, memory) = machine(&[
            ("proc/self/cgroup", "0::/pod/app\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/pod/app/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/app/memory.high", "1073741824\n"),
            ("sys/fs/cgroup/pod/app/memory.current", "0\n"),
            ("sys/fs/cgroup/pod/memory.max", "1572864000\n"),
            ("sys/fs/cgroup/pod/memory.current", "1048576000\n"),
        ]);
        // 1024 of its own; the pod has 1500 and others in it use 1000.
        assert_eq!(mib(&memory), Some(500));
        assert_eq!(memory.limit.map(|limit| limit.bytes), Some(1500 * MIB));
    }

    #[test]
    fn a_group_of_version_1_limits_beside_an_empty_version_2() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let (_root, memory) = machine(&[
            ("proc/self/cgroup", "4:memory:/a/b\n1:cpu:/\n0::/\n"),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/unified/cgroup.procs", "1\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "99999999999\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "943718400\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "209715200\n"),
            (
                "sys/fs/cgroup/memory/a/memory.stat",
                "inactive_file 0\ntotal_inactive_file 104857600\ntotal_active_file 0\n",
            ),
            (
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(mib(&memory), Some(800));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_top() {
        let files = [
            ("sys/fs/cgroup/memory.max", "104857600\n"),
            ("sys/fs/cgroup/memory.current", "0\n"),
        ];
        // With a name space of its own, with the mount showing its group, and with a group that it cannot see.
        for (group, shown) in [
            ("0::/\n", "/"),
            ("0::/docker/1\n", "/docker/1"),
            ("0::/docker/1\n", "/"),
            ("0::/../../other\n", "/"),
        ] {
            let mount = V2_MOUNT.replace(" / /sys", &format!(" {shown} /sys"));
            let (_root, memory) = machine(
                &[
                    &[
                        ("proc/self/cgroup", group),
                        ("proc/self/mountinfo", mount.as_str()),
                    ],
                    &files[..],
                ]
                .concat(),
            );
            assert_eq!(mib(&memory), Some(100), "{group} {shown}");
        }
    }

    #[test]
    fn what_cannot_be_read_limits_nothing() {
        let (_root, memory) = machine(&[
            ("proc/self/cgroup", "garbage\n0::\n:::\n"),
            ("proc/self/mountinfo", "garbage\n1 2 - cgroup2\n - \n"),
            ("sys/fs/cgroup/memory.max", "many\n"),
        ]);
        assert_eq!((memory.limit, mib(&memory)), (None, Some(2048)));
    }
}
