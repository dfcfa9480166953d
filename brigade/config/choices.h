// Config values that are one of several: an enum for each, its text in the
// JSON (to_string), and its list of choices (kChoices). Parsing, ranges in
// messages, printing and the docs are derived from these.
//
// PURE.
#pragma once

#include <array>

#include "brigade/model_spec/activation_recompute.h"
#include "brigade/schedule/bucket_plan.h"
#include "brigade/schedule/make_schedule.h"

namespace brigade {

// All values of an enum, in the order of the docs. Specialised below for each
// enum that a key may have; empty for every other type.
template <class Enum>
inline constexpr std::array<Enum, 0> kChoices{};

template <class Enum>
concept ConfigChoice = !kChoices<Enum>.empty();

// model.dtype
enum class ModelDtype { kFloat32, kBfloat16 };
constexpr const char* to_string(ModelDtype dtype) {
  switch (dtype) {
    case ModelDtype::kFloat32:
      return "float32";
    case ModelDtype::kBfloat16:
      return "bfloat16";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<ModelDtype>{
    ModelDtype::kFloat32,
    ModelDtype::kBfloat16};

// model.kernels
enum class ModelKernels { kAuto, kCpu, kAten };
constexpr const char* to_string(ModelKernels kernels) {
  switch (kernels) {
    case ModelKernels::kAuto:
      return "auto";
    case ModelKernels::kCpu:
      return "cpu";
    case ModelKernels::kAten:
      return "aten";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<ModelKernels>{
    ModelKernels::kAuto,
    ModelKernels::kCpu,
    ModelKernels::kAten};

// model.init
enum class WeightInit { kRandom, kPretrained };
constexpr const char* to_string(WeightInit init) {
  switch (init) {
    case WeightInit::kRandom:
      return "random";
    case WeightInit::kPretrained:
      return "pretrained";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<WeightInit>{
    WeightInit::kRandom,
    WeightInit::kPretrained};

// distributed.backend
enum class CommBackend {
  kFollowUseCpu,  // "": gloo on CPUs, nccl on GPUs
  kGloo,
  kNccl,
  kMpi,
};
constexpr const char* to_string(CommBackend backend) {
  switch (backend) {
    case CommBackend::kFollowUseCpu:
      return "";
    case CommBackend::kGloo:
      return "gloo";
    case CommBackend::kNccl:
      return "nccl";
    case CommBackend::kMpi:
      return "mpi";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<CommBackend>{
    CommBackend::kFollowUseCpu,
    CommBackend::kGloo,
    CommBackend::kNccl,
    CommBackend::kMpi};

// distributed.grad_sync
enum class GradSyncKind { kBucketed, kPerParam };
constexpr const char* to_string(GradSyncKind kind) {
  switch (kind) {
    case GradSyncKind::kBucketed:
      return "bucketed";
    case GradSyncKind::kPerParam:
      return "per_param";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<GradSyncKind>{
    GradSyncKind::kBucketed,
    GradSyncKind::kPerParam};

// distributed.hierarchical_reduction
enum class HierarchicalReduction {
  kAuto,  // where dp x cp spans several hosts with several of its ranks each
  kOn,
  kOff,
};
constexpr const char* to_string(HierarchicalReduction choice) {
  switch (choice) {
    case HierarchicalReduction::kAuto:
      return "auto";
    case HierarchicalReduction::kOn:
      return "on";
    case HierarchicalReduction::kOff:
      return "off";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<HierarchicalReduction>{
    HierarchicalReduction::kAuto,
    HierarchicalReduction::kOn,
    HierarchicalReduction::kOff};

// distributed.grad_wire
enum class GradWire { kFp32, kBf16, kFp16, kInt8, kPowerSgd };
constexpr const char* to_string(GradWire wire) {
  switch (wire) {
    case GradWire::kFp32:
      return "fp32";
    case GradWire::kBf16:
      return "bf16";
    case GradWire::kFp16:
      return "fp16";
    case GradWire::kInt8:
      return "int8";
    case GradWire::kPowerSgd:
      return "powersgd";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<GradWire>{
    GradWire::kFp32,
    GradWire::kBf16,
    GradWire::kFp16,
    GradWire::kInt8,
    GradWire::kPowerSgd};

// distributed.outer_wire
enum class OuterWire { kFp32, kBf16, kInt8, kInt4 };
constexpr const char* to_string(OuterWire wire) {
  switch (wire) {
    case OuterWire::kFp32:
      return "fp32";
    case OuterWire::kBf16:
      return "bf16";
    case OuterWire::kInt8:
      return "int8";
    case OuterWire::kInt4:
      return "int4";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<OuterWire>{
    OuterWire::kFp32,
    OuterWire::kBf16,
    OuterWire::kInt8,
    OuterWire::kInt4};

// training.lr_schedule
enum class LrScheduleKind { kConstant, kCosine, kLinear, kWsd };
constexpr const char* to_string(LrScheduleKind kind) {
  switch (kind) {
    case LrScheduleKind::kConstant:
      return "constant";
    case LrScheduleKind::kCosine:
      return "cosine";
    case LrScheduleKind::kLinear:
      return "linear";
    case LrScheduleKind::kWsd:
      return "wsd";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<LrScheduleKind>{
    LrScheduleKind::kConstant,
    LrScheduleKind::kCosine,
    LrScheduleKind::kLinear,
    LrScheduleKind::kWsd};

// training.lr_end: where the schedule reaches its minimum.
enum class LrEnd {
  kAfterLastStep,      // so that no step is trained at a rate of 0
  kAtTotalTrainSteps,  // whatever max_tokens says: runs of older versions
};
constexpr const char* to_string(LrEnd end) {
  switch (end) {
    case LrEnd::kAfterLastStep:
      return "after_last_step";
    case LrEnd::kAtTotalTrainSteps:
      return "at_total_train_steps";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<LrEnd>{
    LrEnd::kAfterLastStep,
    LrEnd::kAtTotalTrainSteps};

// training.weight_decay_on
enum class WeightDecayOn {
  kAll,       // every parameter, as picotron does
  kMatrices,  // neither norms nor biases
};
constexpr const char* to_string(WeightDecayOn which) {
  switch (which) {
    case WeightDecayOn::kAll:
      return "all";
    case WeightDecayOn::kMatrices:
      return "matrices";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<WeightDecayOn>{
    WeightDecayOn::kAll,
    WeightDecayOn::kMatrices};

// distributed.pp_engine
template <>
inline constexpr std::array kChoices<ScheduleKind>{
    ScheduleKind::kOneFOneB,
    ScheduleKind::kAfab,
    ScheduleKind::kInterleaved1F1B,
    ScheduleKind::kZeroBubble};

// distributed.bucket_order
template <>
inline constexpr std::array kChoices<BucketOrder>{
    BucketOrder::kRegistration,
    BucketOrder::kReverse,
    BucketOrder::kObserved};

// training.recompute
template <>
inline constexpr std::array kChoices<Recompute>{
    Recompute::kNone,
    Recompute::kSelective,
    Recompute::kFull};

// A step whose loss or gradient is not finite.
enum class OnNonFinite { kStop, kSkip };
constexpr const char* to_string(OnNonFinite action) {
  switch (action) {
    case OnNonFinite::kStop:
      return "stop";
    case OnNonFinite::kSkip:
      return "skip";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<OnNonFinite>{
    OnNonFinite::kStop,
    OnNonFinite::kSkip};

// What is compared of a checkpoint's files before they are loaded.
enum class VerifiedContent { kFull /* SHA-256 */, kSize };
constexpr const char* to_string(VerifiedContent content) {
  switch (content) {
    case VerifiedContent::kFull:
      return "full";
    case VerifiedContent::kSize:
      return "size";
  }
  return "?";
}
template <>
inline constexpr std::array kChoices<VerifiedContent>{
    VerifiedContent::kFull,
    VerifiedContent::kSize};

}  // namespace brigade
