//! Makes Redis' allocator the global allocator of the module, so that its memory is counted in `used_memory` and
//! limited by `maxmemory`.

use std::alloc::{GlobalAlloc, Layout};

use redis_module::raw;

struct RedisAllocator;

#[global_allocator]
static ALLOCATOR: RedisAllocator = RedisAllocator;

/// The alignment of every block. The jemalloc that comes with Redis has size classes of 24 and 40 bytes.
const ALIGNMENT: usize = 8;

/// The alignment of a block whose size is a multiple of it.
const ALIGNMENT_OF_MULTIPLES: usize = 16;

/// Aborts: without memory no error can be reported, and no code of the module runs before Redis has passed its
/// functions.
fn no_redis() -> ! {
    std::process::abort()
}

/// The number of bytes to request. A larger alignment than the usual one needs a size that is a multiple of it.
const fn padded(layout: Layout) -> usize {
    if layout.align() <= ALIGNMENT { layout.size() } else { layout.pad_to_align().size() }
}

/// Whether a block for this layout is aligned by this module: it is placed inside a larger block, and the start of
/// that is stored before it.
const fn is_by_hand(layout: Layout) -> bool {
    layout.align() > ALIGNMENT_OF_MULTIPLES
}

/// Allocates a block that is aligned by this module.
///
/// # Safety
///
/// As for [`GlobalAlloc::alloc`].
unsafe fn alloc_by_hand(layout: Layout) -> *mut u8 {
    // SAFETY: set once by the loader, before anything else here runs.
    let Some(alloc) = (unsafe { raw::RedisModule_Alloc }) else { no_redis() };
    let Some(size) = layout.size().checked_add(layout.align()) else { return std::ptr::null_mut() };
    // SAFETY: any size is allowed.
    let outer: *mut u8 = unsafe { alloc(size) }.cast();
    if outer.is_null() {
        return outer;
    }
    // The offset is at least 8, which is enough for a pointer, because the larger block is aligned to that; and at
    // most the alignment, which is the extra size.
    let within = layout.align() - outer.addr() % layout.align();
    // SAFETY: within the block.
    let block = unsafe { outer.add(within) };
    // SAFETY: within the block too, and a multiple of 8.
    unsafe { block.sub(size_of::<*mut u8>()).cast::<*mut u8>().write_unaligned(outer) };
    block
}

// SAFETY: Redis' functions behave like malloc: blocks are aligned and disjoint, and stay valid until they are freed.
unsafe impl GlobalAlloc for RedisAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_by_hand(layout) {
            // SAFETY: the same call.
            return unsafe { alloc_by_hand(layout) };
        }
        // SAFETY: set once by the loader, before anything else here runs.
        let Some(alloc) = (unsafe { raw::RedisModule_Alloc }) else { no_redis() };
        // SAFETY: any size is allowed.
        unsafe { alloc(padded(layout)) }.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_by_hand(layout) {
            // SAFETY: the same call.
            let block = unsafe { alloc_by_hand(layout) };
            if !block.is_null() {
                // SAFETY: the block has at least this size.
                unsafe { block.write_bytes(0, layout.size()) };
            }
            return block;
        }
        // SAFETY: as above.
        let Some(calloc) = (unsafe { raw::RedisModule_Calloc }) else { no_redis() };
        // SAFETY: any size is allowed.
        unsafe { calloc(1, padded(layout)) }.cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above.
        let Some(free) = (unsafe { raw::RedisModule_Free }) else { no_redis() };
        let outer = if is_by_hand(layout) {
            // SAFETY: `alloc_by_hand` wrote it there.
            unsafe { block.sub(size_of::<*mut u8>()).cast::<*mut u8>().read_unaligned() }
        } else {
            block
        };
        // SAFETY: the caller got the block from here.
        unsafe { free(outer.cast()) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let Some(realloc) = (unsafe { raw::RedisModule_Realloc }) else { no_redis() };
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        if is_by_hand(layout) {
            // SAFETY: a layout with the requested size.
            let moved = unsafe { self.alloc(new) };
            if !moved.is_null() {
                // SAFETY: two blocks, each at least as large as the smaller size.
                unsafe { moved.copy_from_nonoverlapping(block, layout.size().min(size)) };
                // SAFETY: the caller got the block from here.
                unsafe { self.dealloc(block, layout) };
            }
            return moved;
        }
        // SAFETY: the caller got the block from here, and any size is allowed.
        unsafe { realloc(block.cast(), padded(new)) }.cast()
    }
}
