//! Memory of the module is memory of Redis: counted in `used_memory`, bounded by `maxmemory`.

use std::alloc::{GlobalAlloc, Layout};

use redis_module::raw;

struct RedisAllocator;

#[global_allocator]
static ALLOCATOR: RedisAllocator = RedisAllocator;

/// What Redis' allocator aligns to by itself.
const ALIGNMENT: usize = 16;

/// Nothing can be said without memory, and nothing of this library runs before Redis has handed out its functions.
fn no_redis() -> ! {
    std::process::abort()
}

/// Bytes to ask for. What wants more than the usual alignment has a size that is a multiple of it, which the size classes
/// of the allocator then keep to.
const fn padded(layout: Layout) -> usize {
    if layout.align() <= ALIGNMENT { layout.size() } else { layout.pad_to_align().size() }
}

// SAFETY: Redis' functions are those of malloc: blocks are aligned, disjoint, and theirs until they are freed.
unsafe impl GlobalAlloc for RedisAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: set once by the loader, before anything else here runs.
        let Some(alloc) = (unsafe { raw::RedisModule_Alloc }) else { no_redis() };
        // SAFETY: any size is allowed.
        unsafe { alloc(padded(layout)) }.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let Some(calloc) = (unsafe { raw::RedisModule_Calloc }) else { no_redis() };
        // SAFETY: any size is allowed.
        unsafe { calloc(1, padded(layout)) }.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: as above.
        let Some(free) = (unsafe { raw::RedisModule_Free }) else { no_redis() };
        // SAFETY: the caller got the block from here.
        unsafe { free(block.cast()) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let Some(realloc) = (unsafe { raw::RedisModule_Realloc }) else { no_redis() };
        let Ok(layout) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        // SAFETY: the caller got the block from here, and any size is allowed.
        unsafe { realloc(block.cast(), padded(layout)) }.cast()
    }
}
