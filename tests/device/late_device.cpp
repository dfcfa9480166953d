#include "late_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "brigade/metrics/clock.h"

#include "late_memory.h"
#include "late_stream.h"

namespace brigade::testing {
namespace {

using c10::Stream;
using torch::Device;
using torch::Tensor;

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 8;

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_stream{};

c10::DeviceIndex index_of(Device device) {
  return device.has_index() ? device.index() : current_device;
}

Stream stream_of(Device device) {
  const auto index = index_of(device);
  return Stream(
      Stream::UNSAFE,
      Device(kType, index),
      current_stream[static_cast<size_t>(index)]);
}

// A place in a stream.
struct LateEvent {
  LateStream* stream = nullptr;
  int64_t number = 0;
  std::shared_ptr<std::atomic<int64_t>> reached_ns;  // timed events only
};

struct LateGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  Device exchangeDevice(Device device) const override {
    return {kType, std::exchange(current_device, index_of(device))};
  }
  Device getDevice() const override { return {kType, current_device}; }
  void setDevice(Device device) const override {
    current_device = index_of(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    current_device = index_of(device);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  Stream getStream(Device device) const noexcept override {
    return stream_of(device);
  }
  Stream getDefaultStream(Device device) const override {
    return Stream(Stream::UNSAFE, Device(kType, index_of(device)), 0);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    static std::atomic<c10::StreamId> last{0};
    return Stream(Stream::UNSAFE, Device(kType, index_of(device)), ++last);
  }
  Stream exchangeStream(Stream stream) const noexcept override {
    const Stream before = stream_of(stream.device());
    current_stream[static_cast<size_t>(stream.device_index())] = stream.id();
    return before;
  }
  bool queryStream(const Stream& stream) const override {
    LateStream& late = LateStream::of(stream);
    return late.is_done(late.pushed());
  }
  void synchronizeStream(const Stream& stream) const override {
    LateStream& late = LateStream::of(stream);
    late.wait_for(late.pushed());
  }

  void record(
      void** event,
      const Stream& stream,
      c10::DeviceIndex,
      c10::EventFlag flag) const override {
    if (*event == nullptr)
      *event = new LateEvent;
    auto& place = *static_cast<LateEvent*>(*event);
    place = {&LateStream::of(stream), 0, nullptr};
    if (flag == c10::EventFlag::BACKEND_DEFAULT) {
      place.reached_ns = std::make_shared<std::atomic<int64_t>>(0);
      place.stream->push(
          [time = place.reached_ns] { *time = steady_now_ns(); });
    }
    place.number = place.stream->pushed();
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    const auto time = [](void* event) {
      return static_cast<LateEvent*>(event)->reached_ns->load();
    };
    return static_cast<double>(time(to) - time(from)) / 1e6;
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr)
      return;
    const LateEvent place = *static_cast<LateEvent*>(event);
    LateStream::of(stream).push(
        [place] { place.stream->wait_for(place.number); });
  }
  bool queryEvent(void* event) const override {
    const auto* place = static_cast<LateEvent*>(event);
    return place == nullptr || place->stream->is_done(place->number);
  }
  void synchronizeEvent(void* event) const override {
    if (const auto* place = static_cast<LateEvent*>(event))
      place->stream->wait_for(place->number);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<LateEvent*>(event);
  }
};

struct LateHooks final : at::PrivateUse1HooksInterface {
  // libtorch 2.6 does not have these functions to override.
  // NOLINTBEGIN(modernize-use-override)
  virtual bool isBuilt() const { return true; }
  virtual bool isAvailable() const { return true; }
  // NOLINTEND(modernize-use-override)
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  // torch::manual_seed() seeds every device's generator.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
};

// ---- memory and copies

Tensor empty(
    at::IntArrayRef sizes,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(Device(kType, current_device)));
  return at::detail::empty_generic(
      sizes,
      &late_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(at::kFloat),
      format);
}

Tensor empty_strided(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device> device,
    std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(Device(kType, current_device)));
  return at::detail::empty_strided_generic(
      sizes,
      strides,
      &late_allocator(),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      dtype.value_or(at::kFloat));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (from.is_cpu()) {
    queue_late({to}, [source = from.clone()](const auto& values) {
      values[0].copy_(source);
    });
  } else if (to.is_cpu()) {
    queue_late({from}, [to](const auto& values) { to.copy_(values[0]); });
    if (!non_blocking) {
      LateStream& stream = LateStream::of(stream_of(from.device()));
      stream.wait_for(stream.pushed());
    }
  } else {
    queue_late(
        {to, from}, [](const auto& values) { values[0].copy_(values[1]); });
  }
  return to;
}

at::Scalar local_scalar(const Tensor& tensor) {
  return tensor.to(torch::kCPU).item();
}

// ---- every other call

using Stack = torch::jit::Stack;
using Map = std::function<Tensor(const Tensor&)>;

bool is_late(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kType;
}

// The value with its tensors mapped, and devices replaced by `device`.
c10::IValue mapped(const c10::IValue& value, const Map& map, Device device) {
  if (value.isTensor())
    return map(value.toTensor());
  if (value.isDevice())
    return device;
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector())
      list.push_back(map(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> tensor : value.toOptionalTensorList()) {
      list.push_back(
          tensor ? std::optional<Tensor>(map(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

Stack mapped(const Stack& values, const Map& map, Device device) {
  Stack result;
  for (const c10::IValue& value : values)
    result.push_back(mapped(value, map, device));
  return result;
}

Tensor shape_alone(const Tensor& tensor) {
  if (!is_late(tensor))
    return tensor;
  return at::empty_strided(
      tensor.sizes(),
      tensor.strides(),
      torch::dtype(tensor.scalar_type()).device(torch::kMeta));
}

// The tensor as it is now: until the work is done, set_data() may change its
// memory, and the caller may change a CPU tensor.
Tensor kept(const Tensor& tensor) {
  if (!tensor.defined())
    return tensor;
  if (is_late(tensor))
    return Tensor(tensor.getIntrusivePtr()->shallow_copy_and_detach(
        c10::VariableVersion(0), /*allow_tensor_metadata_change=*/false));
  Tensor copy = tensor.clone();
  copy.unsafeGetTensorImpl()->set_wrapped_number(
      tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return copy;
}

Device device_of(const Stack& arguments) {
  Device device(kType, current_device);
  const Map look = [&](const Tensor& tensor) {
    if (is_late(tensor))
      device = tensor.device();
    return tensor;
  };
  for (const c10::IValue& value : arguments)
    mapped(value, look, torch::kCPU);
  return device;
}

// The index of the argument that the call writes and returns, or -1.
int written_argument(
    const c10::FunctionSchema& schema,
    const c10::Argument& returned) {
  const auto* alias = returned.alias_info();
  if (alias == nullptr)
    return -1;
  TORCH_CHECK(
      alias->isWrite(), "the late device has no view '", schema.name(), "'");
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* other = arguments[i].alias_info();
    if (other != nullptr && other->isWrite() &&
        other->beforeSets() == alias->beforeSets())
      return static_cast<int>(i);
  }
  TORCH_CHECK(false, "the late device lacks '", schema.name(), "'");
}

// Gives an empty result that a call fills (arange) memory of its shape.
void take_shape(const Tensor& result, const Tensor& shape) {
  if (!is_late(result) || result.sizes() == shape.sizes())
    return;
  TORCH_CHECK(
      result.numel() == 0, "the late device resizes empty tensors alone");
  const Tensor memory = empty(
      shape.sizes(),
      result.scalar_type(),
      std::nullopt,
      result.device(),
      std::nullopt,
      std::nullopt);
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(memory.storage());
  impl->set_sizes_contiguous(shape.sizes());
}

void call_late(const c10::OperatorHandle& op, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  Stack arguments(
      stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  const Device device = device_of(arguments);

  Stack shapes = mapped(arguments, shape_alone, torch::kMeta);
  op.callBoxed(&shapes);
  Stack fresh;  // results in new memory; none where an argument is the result
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    const int written = written_argument(schema, schema.returns()[i]);
    if (written >= 0) {
      const c10::IValue& argument = arguments[static_cast<size_t>(written)];
      if (argument.isTensor())
        take_shape(argument.toTensor(), shapes[i].toTensor());
      fresh.emplace_back();
      stack->push_back(argument);
      continue;
    }
    fresh.push_back(mapped(
        shapes[i],
        [&](const Tensor& shape) {
          if (!shape.defined() || !shape.is_meta())
            return shape;
          return empty_strided(
              shape.sizes(),
              shape.strides(),
              shape.scalar_type(),
              std::nullopt,
              device,
              std::nullopt);
        },
        device));
    stack->push_back(fresh.back());
  }

  // CPU tensors over the current memory, which the tensors may give back before
  // the work is done.
  const Map values = [](const Tensor& tensor) {
    return is_late(tensor) ? values_of(tensor) : tensor;
  };
  const Stack held = mapped(arguments, kept, device);
  LateStream::of(stream_of(device))
      .push([op,
             held,
             fresh,
             inputs = mapped(held, values, torch::kCPU),
             into = mapped(fresh, values, torch::kCPU)] {
        const at::AutoDispatchBelowADInplaceOrView no_autograd;
        Stack results = inputs;
        op.callBoxed(&results);
        for (size_t i = 0; i < into.size(); ++i) {
          if (into[i].isTensor() && into[i].toTensor().defined()) {
            into[i].toTensor().copy_(results[i].toTensor());
          } else if (into[i].isTensorList()) {
            const auto to = into[i].toTensorVector();
            const auto from = results[i].toTensorVector();
            for (size_t t = 0; t < to.size(); ++t)
              to[t].copy_(from[t]);
          }
        }
      });
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, LateGuard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_local_scalar_dense", local_scalar);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_late>());
}

Device late_device(int index) {
  static const bool is_registered = [] {
    c10::register_privateuse1_backend("late");
    at::RegisterPrivateUse1HooksInterface(new LateHooks);
    c10::SetAllocator(kType, &late_allocator());
    return true;
  }();
  TORCH_CHECK(is_registered && index < kDevices, "late device ", index);
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

void queue_late(
    const std::vector<Tensor>& tensors,
    std::function<void(const std::vector<Tensor>&)> work) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> held;
  std::vector<Tensor> values;
  for (const Tensor& tensor : tensors) {
    held.push_back(kept(tensor));
    values.push_back(values_of(held.back()));
  }
  LateStream::of(stream_of(tensors.front().device()))
      .push([held = std::move(held),
             values = std::move(values),
             work = std::move(work)] {
        // A device writes any tensor, whatever mode made it.
        const c10::InferenceMode inference;
        work(values);
      });
}

}  // namespace brigade::testing
