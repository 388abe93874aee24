//! How the C library keeps the memory that is freed. A leaf.

/// Call it before the first thread starts. Left to itself the allocator keeps a heap for each of the dozen threads here, the Kafka
/// client's among them, and a record is made by one and freed by another: every heap grows to what is in flight at most. Nor does it give
/// the buffers of whole requests back at once any more after it has seen a few of them, and they come to lie between what stays.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    // SAFETY: settings of the allocator, which takes any number and no pointer.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}
