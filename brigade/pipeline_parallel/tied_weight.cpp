#include "brigade/pipeline_parallel/tied_weight.h"

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/base/units.h"

namespace brigade {

void sum_tied_gradient(Communicator& pp, torch::Tensor gradient) {
  const int last = pp.size() - 1;
  const bool is_first = pp.rank() == 0;
  if (pp.size() == 1 || (!is_first && pp.rank() != last))
    return;
  BRIGADE_ASSERT(gradient.is_contiguous(), "the tied gradient");
  // Apart from every tag of StageTransfers, which counts from 0.
  constexpr int kTag = (1 << 28) - 2;  // the last one
  const int64_t piece_numel = 8 * MiB / gradient.element_size();
  const torch::Tensor flat = gradient.view({-1});
  for (int64_t begin = 0; begin < flat.numel(); begin += piece_numel) {
    const torch::Tensor mine =
        flat.narrow(0, begin, std::min(piece_numel, flat.numel() - begin));
    torch::Tensor theirs = torch::empty_like(mine);
    const int peer = is_first ? last : 0;
    // One order for the pair: first the first rank's, then the last one's.
    const auto send = [&] { return pp.send(mine, peer, kTag); };
    const auto recv = [&] { return pp.recv(theirs, peer, kTag); };
    const WorkPtr one = is_first ? send() : recv();
    const WorkPtr two = is_first ? recv() : send();
    one->wait();
    two->wait();
    mine.copy_(is_first ? mine + theirs : theirs + mine);
  }
}

}  // namespace brigade
