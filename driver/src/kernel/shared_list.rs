//! A list that is cheap to copy: readers keep what they took while its owner replaces items.

use std::sync::Arc;

/// An immutable list of shared items, in order.
#[derive(Debug, PartialEq, Eq)]
pub struct SharedList<T>(Arc<[Arc<T>]>);

impl<T> SharedList<T> {
    /// The items, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator + Clone {
        self.0.iter().map(|item| &**item)
    }

    /// The items, to build another list with them.
    pub(crate) fn shared(&self) -> &[Arc<T>] {
        &self.0
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no item.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Changes a copy of the items.
    #[cfg(test)]
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Vec<T>))
    where
        T: Clone,
    {
        let mut items: Vec<T> = self.iter().cloned().collect();
        change(&mut items);
        *self = items.into();
    }
}

impl<T> Clone for SharedList<T> {
    fn clone(&self) -> Self {
        SharedList(self.0.clone())
    }
}

impl<T> Default for SharedList<T> {
    fn default() -> Self {
        Vec::<T>::new().into()
    }
}

impl<T> From<Vec<T>> for SharedList<T> {
    fn from(items: Vec<T>) -> Self {
        SharedList(items.into_iter().map(Arc::new).collect())
    }
}

impl<T> FromIterator<T> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        items.into_iter().map(Arc::new).collect()
    }
}

impl<T> FromIterator<Arc<T>> for SharedList<T> {
    fn from_iter<I: IntoIterator<Item = Arc<T>>>(items: I) -> Self {
        SharedList(items.into_iter().collect())
    }
}

impl<T> std::ops::Index<usize> for SharedList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.0[index]
    }
}
