#include "tests/support/run_program.h"

#include <fmt/format.h>
#include <torch/serialize.h>

#include <mutex>
#include <sstream>

#include "brigade/comm/process_mesh.h"
#include "tests/support/program_net.h"
#include "tests/support/program_parts.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade::testing {
namespace {

using P = RandomProgram;

// One rank's run of a program.
class WrappedRun {
 public:
  WrappedRun(const P& program, const CommunicatorPtr& world)
      : program_(program),
        rank_(world->rank()),
        net_(std::make_shared<ProgramNet>(program.net)),
        model_(net_, world, options_of(program), program.wrap) {
    if (program.missing_steps > 0)
      model_.allow_uneven_inputs();
    if (program.optimizer == ProgramOptimizer::kBrigadeAdamW) {
      std::vector<AdamWParams> groups;
      for (auto& params : params_by_group(program, *net_))
        groups.push_back(
            {.params = params,
             .weight_decay = weight_decay_of(program, groups.size())});
      adamw_.emplace(make_adamw(model_.sync(), groups, {.eps = 1e-2}));
      return;
    }
    auto groups = plain_groups(program, *net_);
    optimizer_ = make_optimizer(
        program,
        is_main_grad() ? owned_parameters(model_.sync(), groups) : groups);
    if (is_in_backward())
      model_.step_in_backward(*optimizer_);
  }

  void run_step(int64_t step) {
    prepare_step(step);
    for (size_t m = 0; m < program_.micro_batches; ++m)
      run_micro_batch(step, m);
    if (program_.options.finish == FinishMode::kExplicit)
      model_.finish();
    if (program_.clip == P::Clip::kNorm)
      model_.clip_grad_norm(kProgramMaxNorm);
    else if (program_.clip == P::Clip::kValue)
      model_.clip_grad_value(kProgramMaxValue);
    if (step == program_.skipped_step)
      drop_gradients();
    else if (!is_in_backward())
      take_step(step);
    run_between(step);
  }

  void join() { model_.join(); }

  ProgramValues values() {
    if (program_.options.sharding != Sharding::kParameters) {
      if (program_.options.gather == GatherMode::kOverlapForward)
        model_.sync().weights().need_all();
      return values_of(*net_);
    }
    const FullWeights whole(model_.sync());
    return values_of(*net_);
  }

 private:
  static GradSyncOptions options_of(const P& program) {
    GradSyncOptions options = program.options;
    options.hook = make_hook(program.hook);
    return options;
  }
  bool is_main_grad() const {
    return program_.options.handover == GradHandover::kMainGrad;
  }
  bool is_in_backward() const {
    return program_.stepping == P::Stepping::kInBackward;
  }
  void prepare_step(int64_t step) {
    if (optimizer_)
      set_rates(*optimizer_, step);
    else if (is_in_backward())
      model_.step_in_backward(*adamw_, rates_of(step));
    switch (program_.zero_grad) {
      case P::ZeroGrad::kNever:
        break;
      case P::ZeroGrad::kModule:
        net_->zero_grad(/*set_to_none=*/false);
        break;
      case P::ZeroGrad::kModuleToNone:
        net_->zero_grad(/*set_to_none=*/true);
        break;
      case P::ZeroGrad::kOptimizer:
        if (optimizer_)
          optimizer_->zero_grad();
        break;
    }
  }

  std::optional<NoSync> guard_of(size_t micro) {
    if (program_.accumulation == P::Accumulation::kEachReduced)
      return std::nullopt;
    if (program_.accumulation == P::Accumulation::kUntilLast)
      return std::optional<NoSync>(
          std::in_place,
          model_.sync(),
          mode_of_micro_batch(micro, program_.micro_batches));
    if (micro + 1 == program_.micro_batches)
      return std::nullopt;
    return std::optional<NoSync>(
        std::in_place, model_.sync(), NoSync::Mode::kAccumulate);
  }

  std::vector<torch::Tensor> forward(const ProgramBatch& batch) {
    return model_.forward(batch.features, batch.ids, batch.branch);
  }

  void run_micro_batch(int64_t step, size_t micro) {
    const auto guard = guard_of(micro);
    const ProgramBatch batch = batch_of(program_, step, micro, rank_);
    const auto losses = losses_of(
        program_, batch, [this](const ProgramBatch& b) { return forward(b); });
    if (program_.peek == P::Peek::kGradOfOneWeight)
      torch::autograd::grad(
          {losses[0]}, {net_->first_weight()}, {}, /*retain_graph=*/true);
    for (const torch::Tensor& loss : losses)
      loss.backward();
  }

  void take_step(int64_t step) {
    if (adamw_) {
      adamw_->step(
          rates_of(step), model_.sync().grad_scale(), ops::AfterRead::kZero);
      model_.gather_weights();
    } else if (is_main_grad()) {
      model_.step(*optimizer_);
    } else {
      optimizer_->step();
    }
  }

  void drop_gradients() {
    if (optimizer_ && program_.zero_grad == P::ZeroGrad::kOptimizer)
      optimizer_->zero_grad();
    else
      net_->zero_grad(/*set_to_none=*/true);
  }

  void run_between(int64_t step) {
    if (program_.missing_steps > 0)
      return;
    if (program_.between == P::Between::kEvaluation) {
      const torch::NoGradGuard no_grad;
      forward(batch_of(program_, step, 0, rank_));
    } else if (program_.between == P::Between::kSaving) {
      const FullWeights whole(model_.sync());
      std::stringstream file;
      torch::save(net_, file);
    }
  }

  const P& program_;
  int rank_;
  std::shared_ptr<ProgramNet> net_;
  DataParallel<std::shared_ptr<ProgramNet>> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::optional<AdamW> adamw_;
};

std::vector<std::string> compare(
    const P& program,
    const ProgramValues& actual,
    const std::vector<ProgramValues>& expected,
    int64_t step) {
  std::vector<std::string> lines;
  const auto& now = expected[static_cast<size_t>(step)];
  const auto names = ProgramNet(program.net).named_parameters().keys();
  constexpr double kRounding = 2e-6;
  for (size_t i = 0; i < now.size(); ++i) {
    // Each step's rounding is in proportion to that step, also where a later
    // one goes back.
    double moved = 0;
    for (size_t k = 1; k <= static_cast<size_t>(step); ++k)
      moved += (expected[k][i] - expected[k - 1][i]).abs().max().item<double>();
    const double off = (actual[i] - now[i]).abs().max().item<double>();
    const double allowed =
        moved == 0 ? 0 : program.tolerance * moved + kRounding;
    if (!(off <= allowed))
      lines.push_back(fmt::format(
          "step {}: {} is {:.3g} from its oracle, which moved by {:.3g}",
          step,
          names[i],
          off,
          moved));
  }
  return lines;
}

void run_on_ranks(
    const P& program,
    const std::function<void(const CommunicatorPtr& world)>& body) {
  if (program.group == P::Group::kPlain)
    return run_ranks(program.ranks, body);
  run_ranks_with_store(program.ranks, [&](int rank, const StorePtr& store) {
    const BackendOptions backend{
        .backend = ranks_are_processes() ? Backend::kMpi : Backend::kGloo,
        .hosts = {"a", "a", "b", "b"},
        .hierarchy = HierarchyChoice::kOn};
    const ProcessMesh mesh(
        {.dp = program.ranks},
        rank,
        store,
        {.timeout = kNever, .check_collectives = true},
        backend);
    body(mesh.dp_cp());
  });
}

}  // namespace

std::vector<std::string> run_wrapped(
    const RandomProgram& program,
    const std::vector<ProgramValues>& expected,
    const CommunicatorPtr& world) {
  WrappedRun run(program, world);
  const int64_t steps = steps_of(program, world->rank());
  for (int64_t step = 0; step < steps; ++step) {
    run.run_step(step);
    if (program.missing_steps > 0)
      continue;
    const auto lines = compare(program, run.values(), expected, step + 1);
    // Going on alone would leave the others waiting.
    if (!lines.empty() && world->size() == 1)
      return lines;
    auto any = torch::full({1}, lines.empty() ? 0 : 1, torch::kLong);
    world->all_reduce(any, ReduceOp::kMax)->wait();
    if (any.item<int64_t>() != 0)
      return lines;
  }
  if (program.missing_steps == 0)
    return {};
  run.join();
  return compare(program, run.values(), expected, program.steps);
}

std::vector<std::string> differences_of(const RandomProgram& program) {
  std::mutex mutex;
  std::vector<std::string> differences;
  try {
    const auto expected = run_plain(program);
    run_on_ranks(program, [&](const CommunicatorPtr& world) {
      const auto lines = run_wrapped(program, expected, world);
      const std::lock_guard lock(mutex);
      for (const std::string& line : lines)
        differences.push_back(fmt::format("rank {}: {}", world->rank(), line));
    });
  } catch (const std::exception& error) {
    differences.emplace_back(error.what());
  }
  return differences;
}

}  // namespace brigade::testing
