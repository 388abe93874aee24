//! Settings of the C library's allocator.

/// Makes the allocator return freed memory to the system. Must be called before the first thread starts.
///
/// By default the allocator keeps an arena for each thread, and there are a dozen here, those of the Kafka client included. A
/// record is allocated by one thread and freed by another, so every arena would grow to the maximum that is in flight. The
/// allocator also raises its mmap threshold when large buffers are freed: later request buffers would be placed on the heap and
/// fragment it.
pub fn limit_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: settings of the allocator, which takes any number and no pointer.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}
