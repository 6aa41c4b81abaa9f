//! A whole cluster in one process: the real controllers and the real driver over a modelled world,
//! in virtual time. A seed is a history, and two runs of a seed are the same.

mod model;

fn main() {
    model::start();
}
