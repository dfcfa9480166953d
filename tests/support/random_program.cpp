#include "tests/support/random_program.h"

#include <fmt/format.h>

#include <random>

namespace brigade::testing {
namespace {

using Net = ProgramNetOptions;
using P = RandomProgram;

// Draws by remainders: the same programs with every standard library.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  bool chance(int percent) { return between(0, 99) < percent; }
  int64_t between(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(
                       engine_() % static_cast<uint64_t>(last - first + 1));
  }
  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(
        between(0, static_cast<int64_t>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

void draw_net(Draw& draw, P& program) {
  Net& net = program.net;
  net.features = draw.between(1, 7);
  net.width = 4 * draw.between(1, 3);
  net.vocabulary = draw.between(4, 20);
  net.layers = draw.between(1, 4);
  net.outputs = draw.between(1, 5);
  net.embedding = draw.one_of<Net::Embedding>(
      {Net::Embedding::kNone, Net::Embedding::kDense, Net::Embedding::kDense});
  if (net.embedding == Net::Embedding::kDense && draw.chance(50))
    net.head = Net::Head::kTiedToEmbedding;
  net.norm = draw.one_of<Net::Norm>(
      {Net::Norm::kNone, Net::Norm::kLayer, Net::Norm::kGroup});
  net.second_head = draw.one_of<Net::SecondHead>(
      {Net::SecondHead::kNone,
       Net::SecondHead::kOnTrunk,
       Net::SecondHead::kTower});
  if (draw.chance(25))
    net.frozen_layer = draw.between(0, net.layers - 1);
  net.repeats = draw.chance(20) ? 2 : 1;
}

void draw_sync(Draw& draw, P& program) {
  GradSyncOptions& options = program.options;
  options.bucket_capacity_bytes =
      draw.one_of<int64_t>({64, 300, 2000, 1 << 20});
  options.first_bucket_bytes = draw.one_of<int64_t>({16, 200, 1 << 20});
  options.last_bucket_bytes = draw.one_of<int64_t>({16, 200, 1 << 20});
  options.reduction = draw.chance(80) ? Reduction::kMean : Reduction::kSum;
  options.handover =
      draw.chance(65) ? GradHandover::kMainGrad : GradHandover::kParamDtype;
  if (draw.chance(25))
    options.finish = FinishMode::kExplicit;
  if (options.handover == GradHandover::kMainGrad) {
    options.sharding = draw.one_of<Sharding>(
        {Sharding::kNone,
         Sharding::kOptimizer,
         Sharding::kGradients,
         Sharding::kParameters});
    if (draw.chance(40))
      options.gather = GatherMode::kOverlapForward;
    options.order = draw.one_of<BucketOrder>(
        {BucketOrder::kReverse, BucketOrder::kRegistration});
    return;
  }
  options.order = draw.one_of<BucketOrder>(
      {BucketOrder::kReverse,
       BucketOrder::kRegistration,
       BucketOrder::kObserved});
}

// Gradients that are rounded on the way make results differ: optimizers that
// divide by their size are left out then, because they enlarge it.
bool is_exact(const P& program) {
  return program.hook == P::Hook::kDefault && !program.wrap.mixed_precision;
}

void draw_hook(Draw& draw, P& program) {
  if (!draw.chance(25))
    return;
  const bool is_sharded = program.options.sharding != Sharding::kNone;
  const auto set = [&](P::Hook hook, double tolerance) {
    program.hook = hook;
    program.tolerance = tolerance;
  };
  if (is_sharded && draw.chance(50))
    set(P::Hook::kScatterBf16, 0.05);
  else if (is_sharded)
    set(P::Hook::kScatterFp16, 0.01);
  else if (draw.chance(35))
    set(P::Hook::kBf16, 0.05);
  else if (draw.chance(50))
    set(P::Hook::kFp16, 0.01);
  else if (draw.chance(50))
    set(P::Hook::kInt8, 0.1);
  else
    set(P::Hook::kPowerSgdExact, 2e-3);
}

void draw_branch(Draw& draw, P& program) {
  if (divides_gradients(program.options.sharding) || !draw.chance(35))
    return;
  program.options.missing_gradient = MissingGradient::kZero;
  program.net.branch = draw.one_of<Net::Branch>(
      {Net::Branch::kNever,
       Net::Branch::kInEvenSteps,
       Net::Branch::kOnEvenRanks});
}

void draw_optimizer(Draw& draw, P& program) {
  using O = ProgramOptimizer;
  const bool is_main_grad = program.options.handover == GradHandover::kMainGrad;
  // A parameter in flat memory that nothing used has a gradient of zero.
  const bool is_all_used = program.net.branch == Net::Branch::kNone;
  std::vector<O> choices = {O::kSgd};
  if (is_all_used || !is_main_grad)
    choices.push_back(O::kMomentum);
  if (is_exact(program) && (is_all_used || !is_main_grad)) {
    choices.insert(
        choices.end(), {O::kAdam, O::kAdamW, O::kRmsprop, O::kAdagrad});
    if (is_main_grad)
      choices.insert(choices.end(), {O::kBrigadeAdamW, O::kBrigadeAdamW});
  }
  program.optimizer = draw.one_of(choices);
  program.groups =
      draw.one_of<P::Groups>({P::Groups::kOne, P::Groups::kMatricesAndVectors});
  const bool may_step_in_backward =
      is_main_grad ? program.options.sharding == Sharding::kNone &&
                         program.optimizer == O::kBrigadeAdamW
                   : true;
  if (may_step_in_backward && draw.chance(25))
    program.stepping = P::Stepping::kInBackward;
  else
    program.clip = draw.one_of<P::Clip>(
        {P::Clip::kNone, P::Clip::kNone, P::Clip::kNorm, P::Clip::kValue});
  // Its errors are in proportion to a block's largest element, which a clipped
  // step no longer has.
  if (program.hook == P::Hook::kInt8 && program.clip == P::Clip::kValue)
    program.clip = P::Clip::kNorm;
  program.zero_grad = draw.one_of<P::ZeroGrad>(
      {P::ZeroGrad::kNever,
       P::ZeroGrad::kModule,
       P::ZeroGrad::kModuleToNone,
       P::ZeroGrad::kOptimizer});
  // Zeros that are left in .grad decay what nothing used, in torch too.
  if (!is_all_used)
    program.zero_grad = P::ZeroGrad::kModuleToNone;
}

void draw_loop(Draw& draw, P& program) {
  program.steps = draw.between(3, 5);
  program.micro_batches = static_cast<size_t>(draw.between(1, 3));
  const bool may_reduce_twice =
      program.options.finish == FinishMode::kAtEndOfBackward &&
      program.stepping == P::Stepping::kAfterBackward &&
      program.hook != P::Hook::kInt8;
  program.accumulation = draw.one_of<P::Accumulation>(
      {P::Accumulation::kUntilLast,
       P::Accumulation::kNoSync,
       may_reduce_twice ? P::Accumulation::kEachReduced
                        : P::Accumulation::kNoSync});
  // On a shared trunk it is refused, as by DDP.
  const bool may_have_each = program.net.second_head == Net::SecondHead::kTower;
  if (may_have_each && draw.chance(60)) {
    program.losses = P::Losses::kEach;
    // The first loss's backward would end the step, and step the other's tower.
    if (program.stepping == P::Stepping::kInBackward &&
        program.options.missing_gradient == MissingGradient::kZero)
      program.options.finish = FinishMode::kExplicit;
  } else if (program.net.second_head != Net::SecondHead::kNone)
    program.losses = P::Losses::kSum;
  // The second derivatives enlarge what rounding changes, step by step.
  if (draw.chance(20) && is_exact(program))
    program.penalty = P::Penalty::kOfInputGradient;
  if (draw.chance(20))
    program.peek = P::Peek::kGradOfOneWeight;
  if (program.stepping == P::Stepping::kAfterBackward && draw.chance(20))
    program.skipped_step = draw.between(0, program.steps - 1);
  program.between = draw.one_of<P::Between>(
      {P::Between::kNothing, P::Between::kEvaluation, P::Between::kSaving});
}

// Programs of few kinds, each in place of another.
void draw_special(Draw& draw, P& program) {
  const bool is_plain = program.options.sharding == Sharding::kNone &&
                        program.wrap.sync == GradSyncAlgorithm::kBucketed &&
                        program.stepping == P::Stepping::kAfterBackward;
  if (is_plain && program.ranks > 1 &&
      program.options.reduction == Reduction::kMean && draw.chance(20)) {
    program.missing_steps = draw.between(1, 2);
    program.skipped_step = -1;
    return;
  }
  if (program.net.embedding == Net::Embedding::kDense && is_plain &&
      program.net.head == Net::Head::kLinear && is_exact(program) &&
      program.options.handover == GradHandover::kParamDtype &&
      draw.chance(50)) {
    program.net.embedding = Net::Embedding::kSparse;
    program.optimizer = ProgramOptimizer::kSgd;
    program.clip = P::Clip::kNone;
    program.zero_grad = P::ZeroGrad::kModuleToNone;
  }
}

// What was drawn later than the rest, from numbers of its own: the programs of
// known seeds stay what they are otherwise.
void draw_more(Draw& draw, P& program) {
  GradSyncOptions& options = program.options;
  const bool steps_after = program.stepping == P::Stepping::kAfterBackward;
  if (options.sharding == Sharding::kNone &&
      program.hook == P::Hook::kDefault &&
      program.net.embedding != Net::Embedding::kSparse && steps_after &&
      program.missing_steps == 0 && draw.chance(25))
    program.wrap.sync = GradSyncAlgorithm::kPerParam;
  if (!divides_gradients(options.sharding) && steps_after && draw.chance(25))
    options.missing_gradient = MissingGradient::kZero;
  // With mixed precision it would compute in float32, on inputs of 16 bits.
  if (program.net.frozen_layer >= 0 && !program.wrap.mixed_precision &&
      draw.chance(50)) {
    const auto layer = fmt::format("layers.{}.", program.net.frozen_layer);
    program.wrap.ignore = {layer + "weight"};
    if (program.net.frozen_layer % 2 == 0)
      program.wrap.ignore.push_back(layer + "bias");
  }
  if (program.wrap.mixed_precision && options.sharding == Sharding::kNone &&
      program.wrap.sync == GradSyncAlgorithm::kBucketed && draw.chance(40)) {
    program.hook = P::Hook::kBf16;
    program.tolerance = 0.05;
  }
}

template <typename E>
int number(E value) {
  return static_cast<int>(value);
}

}  // namespace

RandomProgram draw_program(uint64_t seed) {
  Draw draw(seed);
  P program;
  program.seed = seed;
  program.ranks = static_cast<int>(draw.between(1, 4));
  if (program.ranks == 4 && draw.chance(70))
    program.group = P::Group::kHierarchical;
  draw_net(draw, program);
  draw_sync(draw, program);
  if (program.wrap.sync == GradSyncAlgorithm::kBucketed &&
      program.options.sharding != Sharding::kParameters && draw.chance(15)) {
    program.wrap.mixed_precision =
        MixedPrecision{.param_dtype = torch::kBFloat16};
    // The oracle computes in bf16 too: what is left are values that round to
    // the other neighbour, 2^-8 away, and what later steps make of them.
    program.tolerance = 0.1;
  } else {
    draw_hook(draw, program);
  }
  draw_branch(draw, program);
  draw_optimizer(draw, program);
  draw_loop(draw, program);
  draw_special(draw, program);
  Draw more(seed + 1'000'003);
  draw_more(more, program);
  return program;
}

BucketHook make_hook(RandomProgram::Hook hook) {
  switch (hook) {
    case P::Hook::kDefault:
      return {};
    case P::Hook::kBf16:
      return bf16_hook();
    case P::Hook::kFp16:
      return fp16_hook();
    case P::Hook::kInt8:
      return int8_hook();
    case P::Hook::kPowerSgdExact:
      return powersgd_hook({.exact_steps = 1000});
    case P::Hook::kScatterBf16:
      return reduce_scatter_hook(torch::kBFloat16);
    case P::Hook::kScatterFp16:
      return reduce_scatter_hook(torch::kHalf);
  }
  return {};
}

std::string describe(const RandomProgram& p) {
  std::string options = describe(p.options);
  for (char& c : options)
    c = c == '\n' ? ' ' : c;
  return fmt::format(
      "seed={} ranks={} group={} features={} width={} vocabulary={} layers={} "
      "outputs={} head={} embedding={} norm={} second_head={} branch={} "
      "frozen={} repeats={} {} finish={} hook={} sync={} mixed={} steps={} "
      "micro_batches={} accumulation={} losses={} penalty={} peek={} clip={} "
      "optimizer={} groups={} stepping={} zero_grad={} between={} "
      "skipped_step={} gather={} missing_steps={} ignored={}",
      p.seed,
      p.ranks,
      number(p.group),
      p.net.features,
      p.net.width,
      p.net.vocabulary,
      p.net.layers,
      p.net.outputs,
      number(p.net.head),
      number(p.net.embedding),
      number(p.net.norm),
      number(p.net.second_head),
      number(p.net.branch),
      p.net.frozen_layer,
      p.net.repeats,
      options,
      number(p.options.finish),
      number(p.hook),
      number(p.wrap.sync),
      p.wrap.mixed_precision.has_value(),
      p.steps,
      p.micro_batches,
      number(p.accumulation),
      number(p.losses),
      number(p.penalty),
      number(p.peek),
      number(p.clip),
      number(p.optimizer),
      number(p.groups),
      number(p.stepping),
      number(p.zero_grad),
      number(p.between),
      p.skipped_step,
      number(p.options.gather),
      p.missing_steps,
      p.wrap.ignore.size());
}

}  // namespace brigade::testing
