//! What was done with every job, and what must follow from it.
//!
//! | known | so |
//! | --- | --- |
//! | ADDJOB answered with an ID | the job comes, at least once with a RETRY, as long as not all its copies were destroyed |
//! | ADDJOB refused, or not answered | it comes, or not |
//! | RETRY 0 | it comes once at most; not at all only if a connection broke while it may have been on it, or its node lost its memory |
//! | added and taken in quiet times | it comes once: again only when its RETRY is over |
//! | something comes | somebody added it, and it has the ID that he was told |

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Instant;

/// How a job was added.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// REPLICATE.
    pub copies: usize,
    /// RETRY, seconds.
    pub retry_s: u64,
    /// Nothing happens to the nodes while it is added and taken.
    pub quiet: bool,
}

impl Terms {
    pub fn at_most_once(&self) -> bool {
        self.retry_s == 0
    }
}

#[derive(Debug)]
struct Job {
    terms: Terms,
    /// As the answer to its ADDJOB said, or the first delivery.
    id: Option<String>,
    confirmed: bool,
    /// When the GETJOB was sent that brought it, when its answer came, and from which node.
    deliveries: Vec<(Instant, Instant, usize)>,
    acknowledged: bool,
}

/// What may have happened to jobs that are handed out at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// All that were confirmed come.
    AllCome,
    /// Connections broke: some may be lost.
    MayBeLost,
}

/// All jobs.
#[derive(Debug, Default)]
pub struct Ledger {
    jobs: Vec<Job>,
    by_id: HashMap<String, usize>,
    /// GETJOBs without an answer.
    broken: usize,
}

impl Ledger {
    /// A job is about to be added: its body.
    pub fn adding(&mut self, terms: Terms) -> String {
        self.jobs.push(Job {
            terms,
            id: None,
            confirmed: false,
            deliveries: Vec::new(),
            acknowledged: false,
        });
        format!("job-{}", self.jobs.len() - 1)
    }

    /// Its ADDJOB was answered.
    pub fn added(&mut self, body: &str, id: &str) {
        let number = self.number(body.as_bytes(), id);
        self.jobs[number].confirmed = true;
    }

    fn number(&mut self, body: &[u8], id: &str) -> usize {
        let text = String::from_utf8_lossy(body);
        let number = text.strip_prefix("job-").and_then(|number| number.parse().ok());
        let number: usize = number.unwrap_or_else(|| panic!("nobody added {text} ({id})"));
        let job = self.jobs.get_mut(number);
        let job = job.unwrap_or_else(|| panic!("nobody added {text} ({id})"));
        let known = job.id.get_or_insert_with(|| id.to_owned());
        assert_eq!(known, id, "{text} has one ID");
        self.by_id.insert(id.to_owned(), number);
        number
    }

    /// A GETJOB brought a job: how that was added.
    pub fn delivered(&mut self, body: &[u8], id: &str, sent: Instant, node: usize) -> Terms {
        let number = self.number(body, id);
        let job = &mut self.jobs[number];
        job.deliveries.push((sent, Instant::now(), node));
        assert!(
            job.deliveries.len() < 2 || !job.terms.at_most_once(),
            "handed out twice, though at most once: {job:?}"
        );
        let (first, last) = (
            job.deliveries[0],
            *job.deliveries.last().expect("it was delivered"),
        );
        let gap = last.1.duration_since(first.0);
        assert!(
            job.deliveries.len() < 2 || !job.terms.quiet || gap.as_secs() >= job.terms.retry_s,
            "handed out again before its RETRY was over, though all was quiet: {job:?}"
        );
        job.terms
    }

    /// An ACKJOB was answered.
    pub fn acknowledged(&mut self, id: &str) {
        let number = self.by_id[id];
        self.jobs[number].acknowledged = true;
    }

    /// A GETJOB was not answered: something may have been handed out in vain.
    pub fn broken(&mut self) {
        self.broken += 1;
    }

    /// How many jobs were confirmed.
    pub fn confirmed(&self) -> usize {
        self.jobs.iter().filter(|job| job.confirmed).count()
    }

    /// Whether all have come that must.
    pub fn all_came(&self, once: Once) -> bool {
        self.missing(once).next().is_none()
    }

    fn missing(&self, once: Once) -> impl Iterator<Item = &Job> {
        let must = move |job: &&Job| {
            job.confirmed
                && job.deliveries.is_empty()
                && !(job.terms.at_most_once() && once == Once::MayBeLost)
        };
        self.jobs.iter().filter(must)
    }

    /// Fails unless all have come that must; what happened, in a line.
    pub fn check(&self, once: Once) -> String {
        assert!(
            once == Once::MayBeLost || self.broken == 0,
            "{} GETJOBs were not answered",
            self.broken
        );
        let missing: Vec<_> = self.missing(once).collect();
        let first = &missing[..missing.len().min(5)];
        assert!(missing.is_empty(), "{} lost, such as {first:?}", missing.len());
        let count = |which: &dyn Fn(&Job) -> bool| self.jobs.iter().filter(|job| which(job)).count();
        let mut text = format!("{} jobs, {} confirmed", self.jobs.len(), self.confirmed());
        let twice = count(&|job| job.deliveries.len() > 1);
        let lost = count(&|job| job.confirmed && job.deliveries.is_empty());
        let acknowledged = count(&|job| job.acknowledged);
        let unexpected = count(&|job| !job.confirmed && !job.deliveries.is_empty());
        write!(
            text,
            ", {acknowledged} acknowledged, {twice} came again, {lost} of RETRY 0 lost, {unexpected} came though not confirmed"
        )
        .expect("memory takes what is written");
        text
    }
}
