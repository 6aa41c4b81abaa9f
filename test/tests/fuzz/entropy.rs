//! Derives choices from the bytes of an input.

/// Consumes the bytes of an input one by one, then yields zeros.
pub(crate) struct Entropy<'a> {
    rest: &'a [u8],
}

impl<'a> Entropy<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Entropy<'a> {
        Entropy { rest: bytes }
    }

    /// True if all bytes are consumed.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else {
            return 0;
        };
        self.rest = rest;
        *first
    }

    /// A number below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let wide = u16::from_le_bytes([self.byte(), if n > 256 { self.byte() } else { 0 }]);
        usize::from(wide) % n
    }

    /// True with probability `n`/256.
    pub(crate) fn chance(&mut self, n: u8) -> bool {
        self.byte() < n
    }

    pub(crate) fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[self.below(from.len())]
    }

    /// Up to 31 arbitrary bytes as text.
    pub(crate) fn text(&mut self) -> String {
        let length = self.below(32);
        let bytes: Vec<u8> = (0..length).map(|_| self.byte()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Changes, removes, repeats or inserts a few bytes.
    pub(crate) fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len().max(1));
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[at] = self.byte(),
                1 => bytes.insert(at, self.byte()),
                2 if !bytes.is_empty() => drop(bytes.remove(at)),
                3 => bytes.truncate(at),
                _ => {
                    let again: Vec<u8> = bytes[at.min(bytes.len())..]
                        .iter()
                        .take(16)
                        .copied()
                        .collect();
                    bytes.extend(again);
                }
            }
        }
        bytes
    }
}
