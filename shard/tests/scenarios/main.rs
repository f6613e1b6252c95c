//! Stories, one a file, told in virtual time: `*.txt` in this folder. [`Teller`](teller::Teller) has their language.

#[path = "../support/mod.rs"]
mod support;

mod teller;

use teller::Teller;

/// Every story, so that one that is not told fails to build.
macro_rules! stories {
    ($($name:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            Teller::tell(concat!(stringify!($name), ".txt"), include_str!(concat!(stringify!($name), ".txt")));
        }
    )*};
}

stories! {
    add_get_acknowledge,
    at_most_once,
    blocking_order,
    client_buffers,
    client_control,
    credits,
    delays_and_leases,
    disconnects,
    flush,
    idle_queues,
    many_homes,
    many_homes_refused,
    many_homes_timeouts,
    maxlen,
    memory,
    memory_comes_back,
    nack_and_working,
    order_behind_memory,
    order_behind_reservations,
    order_of_replies,
    pauses,
    scans,
    stop,
    time_to_live,
}
