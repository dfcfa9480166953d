// The store of one process group's start, with few questions; for the files of
// comm/ only.
//
// Gloo's members each set their addresses and then ask for every other's, one
// by one: R (R - 1) answers of the store for R ranks. Here the group's first
// rank asks for them, and sets them together under one key that the others
// read: a rank costs two keys and one wait, the first rank one look-up per
// member.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace brigade {

// `inner` as this rank of a group of `size` sees it, while the group is made.
// Keys whose last part (behind a '/') is a rank are gathered; all others pass.
c10::intrusive_ptr<c10d::Store>
make_group_store(c10::intrusive_ptr<c10d::Store> inner, int rank, int size);

}  // namespace brigade
