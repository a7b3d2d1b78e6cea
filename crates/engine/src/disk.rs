//! The only access of the engine to files.
//!
//! A [`Disk`] is one flat directory, a [`DiskFile`] an open file in it. [`DirDisk`] is a real directory, and
//! [`ReadDisk`] a real one that is only read. Their simulated twin, `SimDisk` in the testkit, can crash or fail at
//! every call of these traits.
//!
//! The engine relies on this: `sync_data` makes all earlier writes to that file durable, `sync_dir` all earlier
//! creates, renames and removes; a rename is atomic; a write never changes bytes outside its range. A failed sync is
//! never retried, because the system may have dropped the pages and would wrongly report success.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, IFlags, OFlags, StatVfs};
use rustix::io::Errno;
use sureq_sync::thread;

use crate::fault::{Fault, OpenError, Operation};
use crate::offline::unfinished;

/// One flat directory of files.
pub trait Disk: Send + Sync {
    /// The names of the regular files, in no order. Names that are not UTF-8 belong to other programs and are left
    /// out.
    fn list(&self) -> Result<Vec<String>, Fault>;

    /// Creates a file that must not exist yet.
    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault>;

    /// Opens an existing file for reading and writing.
    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault>;

    /// Renames a file. The caller ensures that the new name is free.
    fn rename(&self, from: &str, to: &str) -> Result<(), Fault>;

    fn remove(&self, name: &str) -> Result<(), Fault>;

    /// Makes all earlier creates, renames and removes durable.
    fn sync_dir(&self) -> Result<(), Fault>;

    /// The size of the file system in bytes.
    fn capacity(&self) -> Result<u64, Fault>;

    /// The bytes that are free for this process.
    fn free(&self) -> Result<u64, Fault>;

    /// The number of files that this process can still create; very large if there is no limit.
    fn free_files(&self) -> Result<u64, Fault> {
        Ok(u64::MAX)
    }

    /// Sixteen unpredictable bytes.
    fn entropy(&self) -> Result<[u8; 16], Fault>;
}

static ZEROS: [u8; 1 << 18] = [0; 1 << 18];

/// An open file. All methods take `&self`: one thread writes, any number read.
#[expect(
    clippy::len_without_is_empty,
    reason = "a file's length is a call that can fail, not a collection's size"
)]
pub trait DiskFile: Send + Sync {
    /// The path with which this file was opened, for messages.
    fn path(&self) -> &Path;

    /// Writes a part of `bytes` and returns its length.
    fn write_some_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Reads some bytes, perhaps fewer than `into` has space for; zero only at the end of the file.
    fn read_some_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Makes all earlier writes durable (fdatasync). Must not be called again after it failed.
    fn sync_data(&self) -> Result<(), Fault>;

    /// The file's length in bytes.
    fn len(&self) -> Result<u64, Fault>;

    /// Writes all of `bytes`: continues a short write, and retries an interrupted one.
    fn write_at(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let written = match self.write_some_at(offset, bytes) {
                Ok(0) => Err(io::Error::from(io::ErrorKind::WriteZero)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
                other => other,
            };
            let written = written.map_err(|source| Fault::new(Operation::Write, self.path(), source))?;
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Extends the file to this length with zeros that are really written, so that later syncs change no extents.
    /// Calls `between` after every 256 KiB: larger writes create larger folios, which make small writes more
    /// expensive.
    fn fill_with_zeros(
        &self,
        bytes: u64,
        between: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut offset = 0;
        while offset < bytes {
            let chunk = (bytes - offset).min(ZEROS.len() as u64);
            self.write_at(offset, &ZEROS[..chunk as usize])?;
            offset += chunk;
            between()?;
        }
        Ok(())
    }

    /// Reserves space for this many bytes, if the disk can do that without writing them.
    fn secure_room(&self, _bytes: u64) -> Result<(), Fault> {
        Ok(())
    }

    /// Extends the file to this length with zeros, and reserves space for it as cheaply as the disk can.
    fn reserve(&self, bytes: u64) -> Result<(), Fault> {
        self.fill_with_zeros(bytes, &mut || Ok(()))
    }

    /// Fills `into` as far as the file goes and returns the number of bytes.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Fault> {
        let mut filled = 0;
        while filled < into.len() {
            match self.read_some_at(offset + filled as u64, &mut into[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Fault::new(Operation::Read, self.path(), source)),
            }
        }
        Ok(filled)
    }
}

/// The file whose lock shows that a process serves the directory. It contains the id of that process.
pub(crate) const LOCK_NAME: &str = "lock";

/// A real directory, locked by this process for as long as the value lives.
#[derive(Debug)]
pub struct DirDisk {
    path: PathBuf,
    directory: File,
    /// Closing it releases the lock.
    _lock: File,
}

impl DirDisk {
    /// Locks the directory at `path`, and creates it if it does not exist.
    pub fn open(path: impl Into<PathBuf>) -> Result<DirDisk, OpenError> {
        let path = absolute(path.into())?;
        make_directory(&path)?;
        let directory = File::open(&path).map_err(|source| Fault::new(Operation::Open, &path, source))?;
        let lock = lock(&path)?;
        Ok(DirDisk { path, directory, _lock: lock })
    }

    /// Creates and locks the directory at `path`, or locks it if it exists and is empty: for a copy, which must not
    /// be mixed with the files of another store.
    pub fn make(path: impl Into<PathBuf>) -> Result<DirDisk, OpenError> {
        let path = path.into();
        make_directory(&path)?;
        let not_empty =
            || Fault::new(Operation::Create, &path, io::ErrorKind::DirectoryNotEmpty.into()).into();
        // Do not write to a directory with foreign files, not even a lock.
        if !is_empty(&path)? && !path.join(unfinished::NAME).exists() {
            return Err(not_empty());
        }
        // Take the lock first, so that a live writer is reported, and not its files.
        let disk = DirDisk::open(&path)?;
        match (is_empty(&path)?, unfinished::is_marked(&disk)?) {
            (true, _) => Ok(disk),
            (false, true) => Err(OpenError::Unfinished { path }),
            (false, false) => Err(not_empty()),
        }
    }
}

/// Whether a directory is empty. A lock file alone is left by a failed attempt.
fn is_empty(path: &Path) -> Result<bool, Fault> {
    let entries = fs::read_dir(path).map_err(|source| Fault::new(Operation::List, path, source))?;
    let is_something =
        |entry: &io::Result<fs::DirEntry>| !matches!(entry, Ok(entry) if entry.file_name() == LOCK_NAME);
    Ok(entries.filter(is_something).count() == 0)
}

impl Disk for DirDisk {
    fn list(&self) -> Result<Vec<String>, Fault> {
        list(&self.path)
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        let created = open_with(Operation::Create, self.path.join(name), access().create_new(true))?;
        overwrite_in_place(&created.file);
        Ok(Box::new(created))
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        Ok(Box::new(open_with(Operation::Open, self.path.join(name), &access())?))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Fault> {
        let from = self.path.join(from);
        fs::rename(&from, self.path.join(to)).map_err(|source| Fault::new(Operation::Rename, from, source))
    }

    fn remove(&self, name: &str) -> Result<(), Fault> {
        let path = self.path.join(name);
        fs::remove_file(&path).map_err(|source| Fault::new(Operation::Remove, path, source))
    }

    fn sync_dir(&self) -> Result<(), Fault> {
        self.directory.sync_all().map_err(|source| Fault::new(Operation::SyncDirectory, &self.path, source))
    }

    fn capacity(&self) -> Result<u64, Fault> {
        let system = file_system(&self.directory, &self.path)?;
        Ok(system.f_blocks.saturating_mul(system.f_frsize))
    }

    fn free(&self) -> Result<u64, Fault> {
        let system = file_system(&self.directory, &self.path)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    fn free_files(&self) -> Result<u64, Fault> {
        let system = file_system(&self.directory, &self.path)?;
        // A file system that creates inodes on demand does not count them.
        Ok(if system.f_files == 0 { u64::MAX } else { system.f_favail })
    }

    fn entropy(&self) -> Result<[u8; 16], Fault> {
        entropy()
    }
}

/// A real directory that is only read. Nothing in it is created, changed or removed, so it may belong to another
/// user, or be on a read-only file system.
#[derive(Debug)]
pub struct ReadDisk {
    path: PathBuf,
    directory: File,
    /// Prevents other processes from serving the directory. `None` if there is no lock file, or none that can be
    /// read.
    _lock: Option<File>,
}

impl ReadDisk {
    /// Opens the directory of a store that no process serves, and prevents that any does while the value lives.
    pub fn hold(path: impl Into<PathBuf>) -> Result<ReadDisk, OpenError> {
        let ReadDisk { path, directory, .. } = ReadDisk::peek(path)?;
        let lock = share_lock(&path)?;
        Ok(ReadDisk { path, directory, _lock: lock })
    }

    /// Opens a directory that another process may be serving.
    pub fn peek(path: impl Into<PathBuf>) -> Result<ReadDisk, OpenError> {
        let path = absolute(path.into())?;
        let directory = File::open(&path).and_then(|file| {
            let is_directory = file.metadata()?.is_dir();
            if is_directory { Ok(file) } else { Err(io::ErrorKind::NotADirectory.into()) }
        });
        let directory = directory.map_err(|source| Fault::new(Operation::Open, &path, source))?;
        Ok(ReadDisk { path, directory, _lock: None })
    }

    fn refuse(&self, operation: Operation, name: &str) -> Fault {
        Fault::new(operation, self.path.join(name), io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl Disk for ReadDisk {
    fn list(&self) -> Result<Vec<String>, Fault> {
        list(&self.path)
    }

    fn create(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        Err(self.refuse(Operation::Create, name))
    }

    fn open(&self, name: &str) -> Result<Box<dyn DiskFile>, Fault> {
        Ok(Box::new(open_with(Operation::Open, self.path.join(name), &sight())?))
    }

    fn rename(&self, from: &str, _to: &str) -> Result<(), Fault> {
        Err(self.refuse(Operation::Rename, from))
    }

    fn remove(&self, name: &str) -> Result<(), Fault> {
        Err(self.refuse(Operation::Remove, name))
    }

    fn sync_dir(&self) -> Result<(), Fault> {
        Err(self.refuse(Operation::SyncDirectory, ""))
    }

    fn capacity(&self) -> Result<u64, Fault> {
        let system = file_system(&self.directory, &self.path)?;
        Ok(system.f_blocks.saturating_mul(system.f_frsize))
    }

    fn free(&self) -> Result<u64, Fault> {
        Ok(0)
    }

    fn entropy(&self) -> Result<[u8; 16], Fault> {
        entropy()
    }
}

fn list(directory: &Path) -> Result<Vec<String>, Fault> {
    let names = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        Ok(names)
    };
    names().map_err(|source| Fault::new(Operation::List, directory, source))
}

/// How long an open waits for a free file descriptor. The store shares them with the rest of its process, which may
/// need many for a while.
const DESCRIPTOR_PATIENCE: Duration = Duration::from_secs(30);

/// The interval between attempts, since no signal announces a free descriptor.
const DESCRIPTOR_LOOK: Duration = Duration::from_millis(10);

/// Opens a file. A lack of descriptors is not a fault of the disk, so it is an error only if it lasts.
fn open_with(operation: Operation, path: PathBuf, options: &OpenOptions) -> Result<RealFile, Fault> {
    let since = sureq_sync::now();
    loop {
        match options.open(&path) {
            Ok(file) => return Ok(RealFile { path, file }),
            Err(error)
                if is_out_of_descriptors(&error) && sureq_sync::elapsed(since) < DESCRIPTOR_PATIENCE =>
            {
                thread::sleep(DESCRIPTOR_LOOK);
            }
            Err(source) => return Err(Fault::new(operation, path, source)),
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Disables copy-on-write for a new file. Overwriting a prepared file must not need new space, or a full disk would
/// end the log in the middle of a segment. On most file systems it never does; btrfs needs this flag, set while the
/// file is empty. File systems without the flag return an error, which is ignored.
fn overwrite_in_place(file: &File) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(file) {
        let _ = rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

fn file_system(directory: &File, path: &Path) -> Result<StatVfs, Fault> {
    rustix::fs::fstatvfs(directory).map_err(|errno| Fault::new(Operation::Measure, path, errno.into()))
}

fn entropy() -> Result<[u8; 16], Fault> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; 16];
    File::open(SOURCE)
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|source| Fault::new(Operation::DrawEntropy, SOURCE, source))?;
    Ok(bytes)
}

#[derive(Debug)]
struct RealFile {
    path: PathBuf,
    file: File,
}

impl DiskFile for RealFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn write_some_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }

    fn read_some_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(into, offset)
    }

    fn sync_data(&self) -> Result<(), Fault> {
        self.file.sync_data().map_err(|source| Fault::new(Operation::Sync, &self.path, source))
    }

    fn secure_room(&self, bytes: u64) -> Result<(), Fault> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            Err(Errno::OPNOTSUPP) => Ok(()),
            secured => secured.map_err(|errno| Fault::new(Operation::Write, &self.path, errno.into())),
        }
    }

    fn reserve(&self, bytes: u64) -> Result<(), Fault> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP) => self.fill_with_zeros(bytes, &mut || Ok(())),
            reserved => reserved.map_err(|errno| Fault::new(Operation::Write, &self.path, errno.into())),
        }
    }

    fn len(&self) -> Result<u64, Fault> {
        let metadata =
            self.file.metadata().map_err(|source| Fault::new(Operation::Measure, &self.path, source))?;
        Ok(metadata.len())
    }
}

/// Read and write, for the owner only, since payloads are private; and never through a symbolic link.
fn access() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Read only, and never through a symbolic link.
fn sight() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// The absolute path: files are opened by it for as long as the store is open, and the process may change its working
/// directory meanwhile.
fn absolute(path: PathBuf) -> Result<PathBuf, Fault> {
    std::path::absolute(&path).map_err(|source| Fault::new(Operation::Open, path, source))
}

/// Creates a directory and its parents durably.
fn make_directory(path: &Path) -> Result<(), Fault> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    make_directory(parent)?;
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Fault::new(Operation::Create, path, source));
        }
        _ => {}
    }
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| Fault::new(Operation::SyncDirectory, parent, source))
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(LOCK_NAME);
    let fault = |source| Fault::new(Operation::Lock, &path, source);
    let file = access().create(true).truncate(false).open(&path).map_err(fault)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(directory, file)),
        Err(TryLockError::Error(source)) => return Err(fault(source).into()),
    }
    let pid = std::process::id().to_string();
    file.write_all_at(pid.as_bytes(), 0).and_then(|()| file.set_len(pid.len() as u64)).map_err(fault)?;
    Ok(file)
}

/// Takes a shared lock, for a process that only reads. Returns `None` if the directory has no lock file, as a copy
/// may, or if the file must not be read.
fn share_lock(directory: &Path) -> Result<Option<File>, OpenError> {
    let path = directory.join(LOCK_NAME);
    let fault = |source| Fault::new(Operation::Lock, &path, source);
    let file = match sight().open(&path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            return Ok(None);
        }
        Err(source) => return Err(fault(source).into()),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(in_use(directory, file)),
        Err(TryLockError::Error(source)) => Err(fault(source).into()),
    }
}

fn in_use(directory: &Path, mut lock: File) -> OpenError {
    let mut pid = String::new();
    let named = lock.read_to_string(&mut pid).is_ok() && !pid.is_empty();
    let pid = if named { pid } else { "unknown".to_owned() };
    OpenError::InUse { path: directory.to_owned(), pid }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sureq-disk-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_second_process_gets_the_id_of_the_one_that_holds_the_directory() {
        let path = scratch("held");
        let held = DirDisk::open(&path).unwrap();
        let refused = DirDisk::open(&path).unwrap_err().to_string();
        let pid = std::process::id();
        assert!(refused.ends_with(&format!("is in use by another sureq (pid {pid})")), "{refused}");
        drop(held);
        DirDisk::open(&path).unwrap();
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn files_are_created_written_renamed_and_removed() {
        let path = scratch("life");
        let disk = DirDisk::open(&path).unwrap();
        let file = disk.create("a").unwrap();
        file.write_at(3, b"payload").unwrap();
        file.sync_data().unwrap();
        assert!(disk.create("a").is_err(), "create is exclusive");
        disk.rename("a", "b").unwrap();
        disk.sync_dir().unwrap();
        let mut bytes = [9; 12];
        assert_eq!(disk.open("b").unwrap().read_at(0, &mut bytes).unwrap(), 10);
        assert_eq!(&bytes[..10], b"\0\0\0payload");
        disk.remove("b").unwrap();
        assert_eq!(disk.list().unwrap(), [LOCK_NAME]);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn creates_parent_directories_and_fails_if_a_file_is_in_the_way() {
        let path = scratch("deep");
        drop(DirDisk::open(path.join("a/b")).unwrap());
        fs::write(path.join("file"), b"").unwrap();
        let fault = DirDisk::open(path.join("file")).unwrap_err().to_string();
        assert!(fault.starts_with("cannot "), "{fault}");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_symbolic_link_is_neither_listed_nor_followed() {
        let path = scratch("link");
        let disk = DirDisk::open(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", path.join("link")).unwrap();
        assert_eq!(disk.list().unwrap(), [LOCK_NAME]);
        assert!(disk.open("link").is_err());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_reader_changes_nothing_and_prevents_other_processes_from_serving() {
        let path = scratch("look");
        let disk = DirDisk::open(&path).unwrap();
        disk.create("a").unwrap().write_at(0, b"payload").unwrap();
        assert!(matches!(ReadDisk::hold(&path), Err(OpenError::InUse { .. })), "it is being served");
        let peeking = ReadDisk::peek(&path).unwrap();
        let mut bytes = [0; 7];
        peeking.open("a").unwrap().read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"payload");
        drop(disk);
        let (one, two) = (ReadDisk::hold(&path).unwrap(), ReadDisk::hold(&path).unwrap());
        assert!(DirDisk::open(&path).is_err(), "other processes may read, but not serve");
        assert!(one.create("b").is_err() && one.rename("a", "b").is_err() && one.remove("a").is_err());
        assert!(one.open("a").unwrap().write_at(0, b"x").is_err());
        drop((one, two));
        fs::remove_file(path.join(LOCK_NAME)).unwrap();
        drop(ReadDisk::hold(&path).unwrap());
        assert_eq!(list(&path).unwrap(), ["a"], "reading creates no lock file");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_new_store_is_made_in_a_new_or_an_empty_directory() {
        let path = scratch("make");
        drop(DirDisk::make(path.join("deep")).unwrap());
        let refused = DirDisk::make(&path).unwrap_err().to_string();
        assert!(refused.contains("cannot create") && refused.contains("not empty"), "{refused}");
        fs::create_dir(path.join("empty")).unwrap();
        drop(DirDisk::make(path.join("empty")).unwrap());
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_fault_names_operation_and_path() {
        let path = scratch("fault");
        let disk = DirDisk::open(&path).unwrap();
        let fault = disk.open("absent").err().unwrap().to_string();
        assert!(fault.starts_with("cannot open ") && fault.contains("absent: "), "{fault}");
        fs::remove_dir_all(path).unwrap();
    }
}
