// How hidden states lie over the ranks of a tp group between its regions; see
// tensor_parallel.h. PURE.
#pragma once

namespace brigade {

// Which tokens of a hidden state each rank of a tp group has.
enum class TokenLayout {
  kReplicated,  // every rank has all tokens
  kSharded,     // sequence parallel: rank r has the r-th part of the tokens
};

}  // namespace brigade
