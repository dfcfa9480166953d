// Stores and reductions as c10d's backends see them. Used by the files of comm/
// only.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "brigade/comm/collective.h"
#include "brigade/comm/store.h"

namespace brigade {

// The c10d store inside a Store that store.h made; for any other,
// make_foreign_store().
c10::intrusive_ptr<c10d::Store> c10d_store(const StorePtr& store);

// Wraps a Store that a program brings. It reads and writes `store`, whose own
// timeout holds. Functions that Store does not have and Brigade's groups never
// call (counters, deleting keys) throw CommError. `store` must not be null.
c10::intrusive_ptr<c10d::Store> make_foreign_store(StorePtr store);

// Wraps `inner` for this rank of a group of `size`, while the group is made, to
// reduce the number of requests. Gloo's members each set their addresses and
// then get every other's, one by one: R (R - 1) requests for R ranks. Here the
// group's first rank gets them, and sets them together under one key that the
// others read: a rank costs two keys and one wait, the first rank one look-up
// per member. Keys whose last part (behind a '/') is a rank are gathered; all
// others pass through.
c10::intrusive_ptr<c10d::Store>
make_group_store(c10::intrusive_ptr<c10d::Store> inner, int rank, int size);

inline c10d::ReduceOp to_c10d(ReduceOp op) {
  if (op == ReduceOp::kSum)
    return c10d::ReduceOp::SUM;
  return op == ReduceOp::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::MIN;
}

}  // namespace brigade
