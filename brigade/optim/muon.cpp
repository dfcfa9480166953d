#include "brigade/optim/muon.h"

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

MatrixPiece piece_of(const Param& param, const RunPart& part) {
  const std::vector<int64_t> shape =
      param.row ? param.row->shape : param.tensor.sizes().vec();
  if (shape.size() != 2) {
    throw ConfigError(fmt::format(
        "[optimizer] '{}' has {} dimensions: Muon steps matrices; leave it to "
        "AdamW (StepUnit::kElements)",
        param.name,
        shape.size()));
  }
  return {
      .name = param.name,
      .rows = shape[0],
      .columns = shape[1],
      .slice = param.row ? param.cut.slice : Slice(),
      .begin = part.begin,
      .numel = part.numel};
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
    const std::vector<Param>& params,
    const RanksOf& ranks_of,
    const Options& options)
    : Optimizer(
          std::move(groups),
          {.kind = OptimizerKind::kMuon,
           .adamw = options.adamw,
           .muon = options.muon},
          options.adamw.kernels),
      options_(options) {
  // In the order of the parameters, which all ranks share; also of those
  // whose matrices others own.
  std::vector<CommunicatorPtr> ranks;
  const auto index_of = [&](const Param& param) {
    const CommunicatorPtr of = ranks_of(param);
    const auto known = std::find(ranks.begin(), ranks.end(), of);
    if (known == ranks.end())
      ranks.push_back(of);
    return static_cast<size_t>(
        std::find(ranks.begin(), ranks.end(), of) - ranks.begin());
  };
  for (const Param& param : params)
    index_of(param);
  sets_.resize(ranks.size());
  std::vector<std::vector<MatrixPiece>> pieces(ranks.size());
  for (size_t g = 0; g < this->groups().size(); ++g) {
    const OptimizerGroup& group = this->groups()[g];
    scales_.emplace_back();
    for (size_t i = 0; has_matrices(group) && i < group.parts.size(); ++i) {
      const RunPart& part = group.parts[i];
      const Param& param = params.at(static_cast<size_t>(part.param));
      const size_t set = index_of(param);
      const MatrixPiece& piece =
          pieces[set].emplace_back(piece_of(param, part));
      sets_[set].pieces.emplace_back(g, i);
      scales_.back().push_back(
          muon_scale(options.muon.scale, piece.rows, piece.columns));
    }
  }
  const NewtonSchulzOptions& newton_schulz = options.muon.newton_schulz;
  const WholeMatricesOptions whole{
      .cost =
          [newton_schulz](int64_t rows, int64_t columns) {
            return ops::newton_schulz_flops(rows, columns, newton_schulz);
          },
      // What Newton-Schulz rounds at once, and what it gives: nothing is lost
      // on the way.
      .wire = newton_schulz.dtype == MuonDtype::kBfloat16 ? torch::kBFloat16
                                                          : torch::kFloat};
  for (size_t i = 0; i < ranks.size(); ++i)
    sets_[i].matrices =
        std::make_unique<WholeMatrices>(ranks[i], pieces[i], whole);
}

torch::Tensor Muon::update_of(const StepRange& range) const {
  const torch::Tensor gradient =
      range.after_read == ops::AfterRead::kZero
          ? range.group.main_grad.mul_(range.grad_scale)
          : range.group.main_grad * range.grad_scale;
  const double mu = options_.muon.momentum;
  torch::Tensor momentum = range.states[0].tensor;
  momentum.lerp_(gradient, 1 - mu);
  return options_.muon.nesterov ? gradient.lerp_(momentum, mu)
                                : gradient.copy_(momentum);
}

void Muon::apply_update(const StepRange& range, const torch::Tensor& update)
    const {
  const auto& scales = scales_[range.index];
  change_master(range, [&](torch::Tensor master) {
    master.mul_(1 - range.lr * range.group.rule.weight_decay);
    for (size_t i = 0; i < scales.size(); ++i) {
      const RunPart& part = range.group.parts[i];
      master.narrow(0, part.offset, part.numel)
          .add_(
              update.narrow(0, part.offset, part.numel), -range.lr * scales[i]);
    }
  });
  if (range.after_read == ops::AfterRead::kZero)
    range.group.main_grad.zero_();
}

void Muon::step_ranges(const std::vector<StepRange>& ranges) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> updates(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (has_matrices(ranges[i].group))
      with_float_states(ranges[i], [&](const StepRange& range) {
        updates[i] = update_of(range);
      });
  }
  for (const Set& set : sets_) {
    std::vector<torch::Tensor> pieces;
    for (const auto& [group, index] : set.pieces) {
      const RunPart& part = ranges[group].group.parts[index];
      pieces.push_back(updates[group].narrow(0, part.offset, part.numel));
    }
    set.matrices->apply(pieces, [&](const torch::Tensor& whole) {
      return ops::newton_schulz(whole, options_.muon.newton_schulz);
    });
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (has_matrices(ranges[i].group))
      apply_update(ranges[i], updates[i]);
    else
      step_in_parts(ranges[i]);
  }
}

void Muon::step_range(const StepRange& range) {
  if (!has_matrices(range.group)) {
    adamw_step(range, options_.adamw);
    return;
  }
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[optimizer] '{}' was to be stepped by itself; Muon steps all groups "
          "at once, because its ranks compute matrices for one another",
          range.group.name));
}

}  // namespace brigade
