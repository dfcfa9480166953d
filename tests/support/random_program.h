// A random training program: a module, a loop and the options of wrapping, as
// people write them. Drawn from a seed alone, so that a seed names a program.
//
// Every program is one that plain torch runs on one process with the batches of
// all ranks, and that DataParallel has to train with the same result. What
// DataParallel refuses by name is not drawn.
#pragma once

#include <cstdint>
#include <string>

#include "brigade/wrap/data_parallel.h"

namespace brigade::testing {

// The module: ids and features in, one or two heads out.
struct ProgramNetOptions {
  int64_t features = 5;
  int64_t width = 8;  // a multiple of 4
  int64_t vocabulary = 9;
  int64_t layers = 2;
  int64_t outputs = 3;
  // Both ends of a network as one parameter.
  enum class Head { kLinear, kTiedToEmbedding };
  Head head = Head::kLinear;
  // Whether autograd gives the embedding's gradient as rows.
  enum class Embedding { kNone, kDense, kSparse };
  Embedding embedding = Embedding::kNone;
  enum class Norm { kNone, kLayer, kGroup };
  Norm norm = Norm::kNone;
  enum class SecondHead {
    kNone,
    kOnTrunk,  // shares all layers
    kTower,    // shares nothing
  };
  SecondHead second_head = SecondHead::kNone;
  // A layer that is used ...
  enum class Branch { kNone, kNever, kInEvenSteps, kOnEvenRanks };
  Branch branch = Branch::kNone;
  int64_t frozen_layer = -1;  // -1: none
  int64_t repeats = 1;        // of the first layer
};

enum class ProgramOptimizer {
  kSgd,
  kMomentum,
  kAdam,
  kAdamW,
  kRmsprop,
  kAdagrad,
  kBrigadeAdamW,  // its oracle is torch::optim::AdamW
};

struct RandomProgram {
  uint64_t seed = 0;
  int ranks = 2;
  enum class Group { kPlain, kHierarchical };  // the latter: two hosts
  Group group = Group::kPlain;
  ProgramNetOptions net;
  GradSyncOptions options;  // without the hook
  enum class Hook {
    kDefault,
    kBf16,
    kFp16,
    kInt8,
    kPowerSgdExact,  // nothing but exact steps
    kScatterBf16,
    kScatterFp16,
  };
  Hook hook = Hook::kDefault;
  WrapOptions wrap;

  int64_t steps = 3;
  size_t micro_batches = 1;
  enum class Accumulation {
    kUntilLast,
    kNoSync,
    kEachReduced,  // no guard: every backward reduces
  };
  Accumulation accumulation = Accumulation::kUntilLast;
  enum class Losses {
    kOne,
    kSum,   // of both heads
    kEach,  // a backward() for each head
  };
  Losses losses = Losses::kOne;
  enum class Penalty { kNone, kOfInputGradient };  // by a double backward
  Penalty penalty = Penalty::kNone;
  // Whether gradients are read by autograd::grad() before backward().
  enum class Peek { kNone, kGradOfOneWeight };
  Peek peek = Peek::kNone;
  enum class Clip { kNone, kNorm, kValue };
  Clip clip = Clip::kNone;
  ProgramOptimizer optimizer = ProgramOptimizer::kSgd;
  enum class Groups { kOne, kMatricesAndVectors };
  Groups groups = Groups::kOne;
  enum class Stepping { kAfterBackward, kInBackward };
  Stepping stepping = Stepping::kAfterBackward;
  enum class ZeroGrad { kNever, kModule, kModuleToNone, kOptimizer };
  ZeroGrad zero_grad = ZeroGrad::kModule;  // at the start of each step
  int64_t skipped_step = -1;  // its gradients are dropped; -1: none
  enum class Between { kNothing, kEvaluation, kSaving };
  Between between = Between::kNothing;  // steps
  int64_t missing_steps = 0;            // of odd ranks: uneven inputs
  // How far a weight may be from its oracle, in units of how far the oracle's
  // largest element has moved.
  double tolerance = 2e-3;
};

RandomProgram draw_program(uint64_t seed);
// A hook for one rank: some keep what they lost. Null: the default.
BucketHook make_hook(RandomProgram::Hook hook);
// All that was drawn, one name=value after the other.
std::string describe(const RandomProgram& program);

}  // namespace brigade::testing
