//! The schema: what it refuses, who may do what, how it is applied and verified.

mod archive;
mod audit;
mod managed;
mod migrations;
mod operators;
mod producers;
mod roles;
mod rows;
