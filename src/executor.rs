//! The executor of a shard, and two things about glommio 0.9 that everything on it has to live with.
//!
//! - When its preemption flag is up at the moment it starts to run tasks, it takes that for having nothing to run, and
//!   goes to sleep with runnable tasks. The flag is the completion of a timer or of an eventfd, so on a busy machine this happens: a
//!   shard then slept until the next socket event, without an end when all waited for it. So preemption by time is
//!   as good as off (no task of ours runs long), and a [`Heartbeat`] ends what is left of it.
//! - A task that yields is run again before the executor looks at its rings. [`look_at_rings`] makes it look.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use glommio::timer::Timer;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement, PoolPlacement};

/// Memory that an executor registers with the kernel for direct file I/O, on each of its three rings: glommio's minimum, as
/// nothing is read or written directly.
const IO_MEMORY_BYTES: usize = 64 << 10;
/// Longer than any turn.
const PREEMPTION: Duration = Duration::from_secs(3600);
/// The longest that a runnable task can be slept over while the shard has work to do.
const HEARTBEAT: Duration = Duration::from_millis(25);
/// The same for a shard that has had nothing to do since the last beat: each beat costs it some 50 us of its core.
const HEARTBEAT_IDLE: Duration = Duration::from_millis(250);

/// Long enough that a timer is not due already when it is asked for the first time: it would be no pause at all.
const GLANCE: Duration = Duration::from_micros(2);

/// Threads for blocking calls: a write of the log and a sync go side by side, and whatever else there is does not hold them up.
const BLOCKING_THREADS: usize = 3;

/// Makes an executor on this thread, pinned to a CPU. Its threads for blocking calls may run anywhere.
pub fn on_cpu(cpu: usize) -> Result<LocalExecutor, String> {
    LocalExecutorBuilder::new(Placement::Fixed(cpu))
        .io_memory(IO_MEMORY_BYTES)
        .preempt_timer(PREEMPTION)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(BLOCKING_THREADS))
        .make()
        .map_err(|error| error.to_string())
}

/// Wakes the executor now and then.
#[derive(Clone, Default)]
pub struct Heartbeat {
    is_busy: Rc<Cell<bool>>,
}

impl Heartbeat {
    /// Starts it on this executor, for ever.
    pub fn start() -> Self {
        let heartbeat = Self::default();
        let is_busy = Rc::clone(&heartbeat.is_busy);
        glommio::spawn_local(async move {
            loop {
                let was_busy = is_busy.replace(false);
                Timer::new(if was_busy { HEARTBEAT } else { HEARTBEAT_IDLE }).await;
            }
        })
        .detach();
        heartbeat
    }

    /// There is work: beats quickly for now.
    pub fn quicken(&self) {
        self.is_busy.set(true);
    }
}

/// Lets the tasks run that were woken before, and nothing else.
pub async fn run_woken_tasks() {
    let mut have_run = false;
    poll_fn(|context| {
        if std::mem::replace(&mut have_run, true) {
            return Poll::Ready(());
        }
        // It goes behind them.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Lets the other tasks run and the executor look at its rings, without letting it sleep.
pub async fn look_at_rings() {
    Timer::new(GLANCE).await;
}
