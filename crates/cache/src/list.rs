//! Doubly linked lists threaded through one flat array: an item is in at most one of the lists, and joining,
//! leaving from the middle and taking the oldest each touch a fixed number of links.

const NONE: u32 = u32::MAX;

/// The links of `n` items.
#[derive(Debug)]
pub(crate) struct Links {
    before: Vec<u32>,
    after: Vec<u32>,
    /// Links written so far: what the tests of the O(1) claims count.
    #[cfg(test)]
    pub(crate) writes: u64,
}

/// One list over [`Links`], oldest item first.
#[derive(Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl Links {
    pub(crate) fn new(items: usize) -> Self {
        assert!(items < NONE as usize, "{items} items do not fit 32-bit links");
        Self {
            before: vec![NONE; items],
            after: vec![NONE; items],
            #[cfg(test)]
            writes: 0,
        }
    }

    fn set_before(&mut self, item: u32, before: u32) {
        self.before[item as usize] = before;
        self.count();
    }

    fn set_after(&mut self, item: u32, after: u32) {
        self.after[item as usize] = after;
        self.count();
    }

    #[cfg(test)]
    fn count(&mut self) {
        self.writes += 1;
    }

    #[cfg(not(test))]
    fn count(&mut self) {
        // Only the tests count.
        let _ = self;
    }
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            first: NONE,
            last: NONE,
            len: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push_newest(&mut self, links: &mut Links, item: u32) {
        links.set_before(item, self.last);
        links.set_after(item, NONE);
        if self.last == NONE {
            self.first = item;
        } else {
            links.set_after(self.last, item);
        }
        self.last = item;
        self.len += 1;
    }

    pub(crate) fn pop_oldest(&mut self, links: &mut Links) -> Option<u32> {
        (self.first != NONE).then(|| {
            let item = self.first;
            self.remove(links, item);
            item
        })
    }

    /// Takes an item out of this list; the caller knows that it is in it.
    pub(crate) fn remove(&mut self, links: &mut Links, item: u32) {
        let (before, after) = (links.before[item as usize], links.after[item as usize]);
        if before == NONE {
            assert!(self.first == item, "item {item} is not in this list");
            self.first = after;
        } else {
            links.set_after(before, after);
        }
        if after == NONE {
            assert!(self.last == item, "item {item} is not in this list");
            self.last = before;
        } else {
            links.set_before(after, before);
        }
        links.set_before(item, NONE);
        links.set_after(item, NONE);
        self.len -= 1;
    }

    /// The items, oldest first, after checking that the links agree in both directions.
    pub(crate) fn items(&self, links: &Links) -> Vec<u32> {
        let mut items = Vec::with_capacity(self.len);
        let (mut item, mut before) = (self.first, NONE);
        while item != NONE {
            assert!(
                items.len() < self.len,
                "the list runs past its length {}",
                self.len
            );
            assert!(
                links.before[item as usize] == before,
                "links of item {item} disagree"
            );
            items.push(item);
            before = item;
            item = links.after[item as usize];
        }
        assert!(self.last == before, "the list does not end with its last item");
        assert!(
            items.len() == self.len,
            "the list is shorter than its length {}",
            self.len
        );
        items
    }
}
