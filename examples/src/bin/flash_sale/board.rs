//! The data that the page shows.

use serde::Serialize;

use crate::{
    buyers::BUYERS,
    shop::{Outcome, STOCK, Side, Visit},
};

/// The progress of the sale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    #[default]
    Ready,
    Running,
    Finished,
}

/// All data of the page, as of one moment.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Board {
    pub(crate) phase: Phase,
    pub(crate) processes: u32,
    pub(crate) buyers: u32,
    pub(crate) stock: u32,
    pub(crate) without_lock: Panel,
    pub(crate) with_lock: Panel,
    /// Why the backend of the locks cannot be reached now.
    pub(crate) backend_trouble: Option<String>,
    /// The failure of the last sale.
    pub(crate) sale_trouble: Option<String>,
}

/// The data of one side.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Panel {
    pub(crate) sold: u32,
    pub(crate) oversold: u32,
    pub(crate) waiting: u32,
    pub(crate) gave_up: u32,
    /// Why the first buyer to give up did so.
    pub(crate) reason: Option<String>,
    /// The largest number of buyers that were between reading and writing at once.
    pub(crate) most_inside: u32,
    /// The number of items left, according to the database.
    pub(crate) left: u32,
    /// The buyer between reading and writing, if there is exactly one.
    pub(crate) holder: Option<Holder>,
    pub(crate) turns: u32,
    pub(crate) hand_offs_per_second: u32,
    /// For each buyer the wait for the response, in milliseconds, and the response; in the order of the responses.
    pub(crate) waits: Vec<(u32, Outcome)>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Holder {
    process: String,
    buyer: u32,
}

impl Board {
    pub(crate) fn new(processes: u32) -> Self {
        Self {
            processes,
            buyers: BUYERS,
            stock: STOCK,
            ..Self::default()
        }
    }

    pub(crate) fn panel(&mut self, side: Side) -> &mut Panel {
        match side {
            Side::WithoutLock => &mut self.without_lock,
            Side::WithLock => &mut self.with_lock,
        }
    }
}

impl Panel {
    pub(crate) fn new(visits: &[Visit], left: u32) -> Self {
        let count = |outcome| {
            let visits = visits.iter().map(|visit| visit.outcome);
            u32::try_from(visits.filter(|&shown| shown == outcome).count()).unwrap_or(u32::MAX)
        };
        let sold = count(Some(Outcome::Sold));
        let sold_out = count(Some(Outcome::SoldOut));
        let gave_up = count(Some(Outcome::GaveUp));
        let inside = count(None);
        let response = |visit: &Visit| Some((visit.waited_ms?, visit.outcome?));
        let holder = visits.iter().find(|visit| visit.outcome.is_none());
        Self {
            sold,
            oversold: sold.saturating_sub(STOCK),
            waiting: BUYERS.saturating_sub(sold + sold_out + gave_up + inside),
            gave_up,
            reason: visits.iter().find_map(|visit| visit.reason.clone()),
            most_inside: visits.iter().map(|visit| visit.inside).max().unwrap_or(0),
            left,
            holder: holder.filter(|_| inside == 1).map(|visit| Holder {
                process: visit.process.clone(),
                buyer: visit.buyer,
            }),
            turns: sold + sold_out + inside,
            hand_offs_per_second: 0,
            waits: visits.iter().filter_map(response).collect(),
        }
    }
}
