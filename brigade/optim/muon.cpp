#include "brigade/optim/muon.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/ops/newton_schulz.h"
#include "brigade/optim/adamw.h"

namespace brigade {
namespace {

bool has_matrices(const OptimizerGroup& group) {
  return group.rule.unit == StepUnit::kMatrices;
}

// The shape of the whole parameter.
torch::IntArrayRef whole_shape(const Param& param) {
  return param.row ? torch::IntArrayRef(param.row->shape)
                   : param.tensor.sizes();
}

MatrixPiece piece_of(const Param& param, const RunPart& part, int place) {
  const torch::IntArrayRef shape = whole_shape(param);
  if (shape.size() != 2) {
    throw UsageError(fmt::format(
        "[optimizer] '{}' has {} dimensions: Muon steps matrices; leave it to "
        "AdamW (StepUnit::kElements)",
        param.name,
        shape.size()));
  }
  return {
      .name = param.name,
      .place = place,
      .rows = shape[0],
      .columns = shape[1],
      .slice = param.row ? param.cut.slice : Slice(),
      .begin = part.begin,
      .numel = part.numel};
}

// The piece in a tensor as long as its group.
torch::Tensor in_group(const RunPart& piece, const torch::Tensor& flat) {
  return flat.narrow(0, piece.offset, piece.numel);
}

// The number of elements that are read and written several times while they are
// in the CPU's cache; on other devices all of them.
int64_t cached_numel(const torch::Tensor& memory) {
  return memory.is_cpu() ? (int64_t{1} << 16) * at::get_num_threads()
                         : std::max<int64_t>(1, memory.numel());
}

}  // namespace

double muon_scale(MuonScale scale, int64_t rows, int64_t columns) {
  const auto a = static_cast<double>(rows);
  const auto b = static_cast<double>(columns);
  switch (scale) {
    case MuonScale::kMatchRmsAdamW:
      return 0.2 * std::sqrt(std::max(a, b));
    case MuonScale::kOriginal:
      return std::sqrt(std::max(1.0, a / b));
    case MuonScale::kSpectral:
      return std::sqrt(a / b);
  }
  return 1;
}

Muon::Muon(
    std::vector<OptimizerGroup> groups,
    std::span<const Param> params,
    const RanksOf& ranks_of,
    const Options& options)
    : Optimizer(
          std::move(groups),
          {.kind = OptimizerKind::kMuon,
           .adamw = options.adamw,
           .muon = options.muon}),
      params_(params) {
  if (options.muon.newton_schulz.dtype == MuonDtype::kBfloat16)
    wire_ = torch::kBFloat16;
  // Groups are numbered in the order of the parameters, which all ranks share,
  // including those whose matrices other ranks own.
  std::vector<CommunicatorPtr> ranks;
  const auto index_of = [&](const Param& param) {
    const CommunicatorPtr of = ranks_of(param);
    const auto index = static_cast<size_t>(
        std::find(ranks.begin(), ranks.end(), of) - ranks.begin());
    if (index == ranks.size())
      ranks.push_back(of);
    return index;
  };
  for (const Param& param : params)
    index_of(param);
  sets_.resize(ranks.size());
  std::vector<std::vector<MatrixPiece>> pieces(ranks.size());
  for (size_t g = 0; g < this->groups().size(); ++g) {
    const OptimizerGroup& group = this->groups()[g];
    for (size_t i = 0; has_matrices(group) && i < group.parts.size(); ++i) {
      const RunPart& part = group.parts[i];
      const Param& param = params[static_cast<size_t>(part.param)];
      const size_t set = index_of(param);
      pieces[set].push_back(piece_of(param, part, place_of(part.param)));
      sets_[set].pieces.push_back(part);
      sets_[set].pieces.back().run = g;
    }
  }
  const NewtonSchulzOptions& newton_schulz = options.muon.newton_schulz;
  const WholeMatricesOptions whole{
      .cost =
          [newton_schulz](int64_t rows, int64_t columns) {
            return ops::newton_schulz_flops(rows, columns, newton_schulz);
          },
      // The dtype to which Newton-Schulz rounds its input at once, and of its
      // result: sending in it loses nothing.
      .wire = wire_,
      .round_numel = options.round_numel};
  for (size_t i = 0; i < ranks.size(); ++i)
    sets_[i].matrices =
        std::make_unique<WholeMatrices>(ranks[i], pieces[i], whole);
}

torch::Tensor Muon::update_of(const StepRange& range, bool is_sent) const {
  const double mu = options().muon.momentum;
  const bool in_place = range.after_read == ops::AfterRead::kZero;
  const torch::Tensor update = in_place
                                   ? range.group.main_grad
                                   : torch::empty_like(range.group.main_grad);
  in_parts(range, cached_numel(update), [&](const StepRange& part) {
    with_float_states(part, [&](const StepRange& of) {
      torch::Tensor gradient =
          update.narrow(0, of.begin, of.group.main_grad.numel());
      if (!in_place)
        gradient.copy_(of.group.main_grad);
      gradient.mul_(of.grad_scale);
      torch::Tensor momentum = of.group.states[0].tensor;
      momentum.lerp_(gradient, 1 - mu);
      if (is_sent)
        return;
      if (options().muon.nesterov)
        gradient.lerp_(momentum, mu);
      else
        gradient.copy_(momentum);
    });
  });
  return update;
}

void Muon::apply_update(const StepRange& range, const torch::Tensor& update)
    const {
  in_parts(range, cached_numel(update), [&](const StepRange& of) {
    const int64_t end = of.begin + of.group.weight.numel();
    change_master(of, [&](torch::Tensor master) {
      master.mul_(1 - range.lr * range.group.rule.weight_decay);
      for (const RunPart& part : range.group.parts) {
        const int64_t from = std::max(part.offset, of.begin);
        const int64_t numel = std::min(part.offset + part.numel, end) - from;
        if (numel <= 0)
          continue;
        const auto shape =
            whole_shape(params_[static_cast<size_t>(part.param)]);
        const double scale =
            muon_scale(options().muon.scale, shape[0], shape[1]);
        master.narrow(0, from - of.begin, numel)
            .add_(update.narrow(0, from, numel), -range.lr * scale);
      }
    });
  });
  if (range.after_read == ops::AfterRead::kZero)
    range.group.main_grad.zero_();
}

torch::Tensor Muon::expected_update(size_t group) const {
  const torch::Tensor& main_grad = groups()[group].main_grad;
  const double mu = options().muon.momentum;
  torch::Tensor update = torch::empty_like(main_grad, wire_);
  const int64_t most = cached_numel(main_grad);
  for (int64_t begin = 0; begin < main_grad.numel(); begin += most) {
    const int64_t numel = std::min(most, main_grad.numel() - begin);
    const State kept = narrow_state(states(group)[0], begin, numel);
    const torch::Tensor gradient =
        main_grad.narrow(0, begin, numel) * expected_scale_;
    const torch::Tensor momentum =
        float_states({kept})[0].tensor.lerp(gradient, 1 - mu);
    update.narrow(0, begin, numel)
        .copy_(
            options().muon.nesterov ? gradient.lerp(momentum, mu) : momentum);
  }
  return update;
}

bool Muon::wants_reduced_gradients() {
  // Drops what a backward without a step has left.
  skip_step();
  sends_ahead_ = expected_scale_ > 0 &&
                 std::any_of(sets_.begin(), sets_.end(), [](const Set& set) {
                   return set.matrices->has_pieces_elsewhere();
                 });
  return sends_ahead_;
}

void Muon::gradients_are_reduced(size_t run) {
  const torch::NoGradGuard no_grad;
  const auto run_of = [&](int param) {
    return params_[static_cast<size_t>(param)].owned.run;
  };
  for (size_t g = 0; g < groups().size(); ++g) {
    const OptimizerGroup& group = groups()[g];
    if (has_matrices(group) && !group.parts.empty() &&
        run_of(group.parts.front().param) == run)
      keep_ahead(g, expected_update(g));
  }
  const auto is_final = [&](int place) {
    const int param = param_of(place);
    return !is_late(param) && run_of(param) <= run;
  };
  // The same rounds on all ranks.
  for (const Set& set : sets_) {
    WholeMatrices& matrices = *set.matrices;
    while (matrices.has_pieces_elsewhere() && !matrices.are_all_ahead()) {
      const std::vector<int> places = matrices.places_of_next_ahead();
      if (!std::all_of(places.begin(), places.end(), is_final))
        break;
      matrices.send_ahead();
    }
  }
}

void Muon::keep_ahead(size_t group, const torch::Tensor& update) {
  for (const Set& set : sets_) {
    for (size_t i = 0; i < set.pieces.size(); ++i) {
      if (set.pieces[i].run == group)
        set.matrices->set(i, in_group(set.pieces[i], update));
    }
  }
}

void Muon::drop_ahead() {
  for (const Set& set : sets_) {
    if (!set.matrices->has_pieces_elsewhere())
      continue;
    for (size_t i = 0; i < set.pieces.size(); ++i) {
      const RunPart& piece = set.pieces[i];
      set.matrices->set(i, in_group(piece, groups()[piece.run].main_grad));
    }
    set.matrices->send_rest();
    set.matrices->drop();
  }
}

std::vector<bool> Muon::groups_sent() const {
  std::vector<bool> result(groups().size(), true);
  for (const Set& set : sets_) {
    for (size_t i = 0; i < set.pieces.size(); ++i) {
      if (!set.matrices->is_sent(i))
        result[set.pieces[i].run] = false;
    }
  }
  return result;
}

void Muon::check_steps_groups_apart() const {
  throw UsageError(
      "[data_parallel] an optimizer that steps whole matrices cannot step in "
      "backward, because ranks compute them for one another; call its step() "
      "after backward()");
}

void Muon::skip_step() {
  if (std::exchange(sends_ahead_, false))
    drop_ahead();
}

LateStep Muon::step_ranges(
    const std::vector<StepRange>& ranges,
    double grad_scale) {
  const torch::NoGradGuard no_grad;
  if (grad_scale != expected_scale_)
    skip_step();
  const bool is_ahead = std::exchange(sends_ahead_, false);
  const std::vector<bool> are_sent = groups_sent();
  std::vector<torch::Tensor> updates(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (has_matrices(ranges[i].group))
      updates[i] = update_of(ranges[i], are_sent[i]);
  }
  std::vector<bool> are_unfinished(ranges.size());
  for (Set& set : sets_) {
    for (size_t i = 0; i < set.pieces.size(); ++i) {
      const RunPart& piece = set.pieces[i];
      set.matrices->set(i, in_group(piece, updates[piece.run]));
      if (set.matrices->is_of_last(i))
        are_unfinished[piece.run] = true;
    }
    if (is_ahead && set.matrices->has_pieces_elsewhere())
      set.matrices->send_rest();
    set.matrices->begin();
  }
  // These are stepped while the first pieces are under way.
  for (const StepRange& range : ranges) {
    if (!has_matrices(range.group)) {
      step_in_parts(range);
      complete(range);
    }
  }
  for (Set& set : sets_) {
    set.matrices->finish_but_last([&](const torch::Tensor& whole) {
      return ops::newton_schulz(whole, options().muon.newton_schulz);
    });
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!has_matrices(ranges[i].group))
      continue;
    if (are_unfinished[i]) {
      unfinished_.emplace_back(ranges[i], updates[i]);
      continue;
    }
    apply_update(ranges[i], updates[i]);
    complete(ranges[i]);
  }
  expected_scale_ = grad_scale == last_scale_ ? grad_scale : 0;
  last_scale_ = grad_scale;
  return {late_params(), [this] { finish_step(); }};
}

void Muon::finish_step() {
  const torch::NoGradGuard no_grad;
  for (Set& set : sets_)
    set.matrices->finish();
  for (const auto& [range, update] : unfinished_) {
    apply_update(range, update);
    complete(range);
  }
  unfinished_.clear();
}

std::vector<int> Muon::late_params() const {
  std::vector<int> params;
  const bool is_alone =
      std::all_of(sets_.begin(), sets_.end(), [](const Set& set) {
        return set.matrices->ranks() == 1;
      });
  for (const Set& set : sets_) {
    for (const int place : set.matrices->places_of_last())
      params.push_back(param_of(place));
  }
  return is_alone ? std::vector<int>() : params;
}

void Muon::step_range(const StepRange& range) {
  if (!has_matrices(range.group)) {
    adamw_step(range, options().adamw);
    return;
  }
  throw UsageError(fmt::format(
      "[optimizer] '{}' was to be stepped by itself; Muon steps all groups "
      "at once, because its ranks compute matrices for one another",
      range.group.name));
}

}  // namespace brigade
