//! A file system of some megabytes that only one thread sees, with the processes that it starts.
//!
//! A thread may leave the mount namespace of its process; a tmpfs that it mounts then is nowhere else, and ends with it. That takes
//! a privilege: where it is missing, the test that asks says so and is skipped.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Runs in a thread that may mount; `false`: that is not allowed here.
pub fn with_mounts(run: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::spawn(|| match leave_namespace() {
        Ok(()) => {
            run();
            true
        }
        Err(error) => {
            eprintln!("skipped: no file system can be mounted here ({error})");
            false
        }
    });
    match thread.join() {
        Ok(ran) => ran,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn leave_namespace() -> io::Result<()> {
    // SAFETY: it concerns this thread alone, which has nothing that depends on its mounts.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount(c"none", Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "")
}

/// Mounts an empty file system of this size on a folder.
pub fn mount_tiny(folder: &Path, kilobytes: u64) {
    mount(c"tiny", folder, Some(c"tmpfs"), 0, &format!("size={kilobytes}k")).expect("a tmpfs can be mounted");
}

/// Gives the file system another size.
pub fn resize(folder: &Path, kilobytes: u64) {
    let size = format!("size={kilobytes}k");
    mount(c"tiny", folder, Some(c"tmpfs"), libc::MS_REMOUNT, &size).expect("a tmpfs can be resized");
}

/// Ends the file system.
pub fn unmount(folder: &Path) {
    let folder = path(folder);
    // SAFETY: the string outlives the call.
    check(unsafe { libc::umount2(folder.as_ptr(), libc::MNT_DETACH) }).expect("it is mounted");
}

fn mount(source: &CStr, target: &Path, kind: Option<&CStr>, flags: u64, options: &str) -> io::Result<()> {
    let (target, options) = (path(target), CString::new(options).expect("no zero"));
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the strings outlive the call.
    check(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind,
            flags as libc::c_ulong,
            options.as_ptr().cast(),
        )
    })
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no zero")
}

fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
