#include "brigade/comm/mpi/mpi_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/mpi/mpi_group.h"
#include "brigade/comm/mpi/mpi_process.h"
#include "brigade/comm/sums/chunk_exchange.h"
#include "brigade/comm/sums/composed_communicator.h"

namespace brigade {
namespace {

// Up to this size MPI's own all-reduce is quicker than several messages.
constexpr int64_t kSmallBytes = 16 << 10;
// Up to this size two ranks exchange whole tensors instead of halves and sums.
constexpr int64_t kPairBytes = 128 << 10;
// MPI counts in int.
constexpr int64_t kLargestCount = int64_t{1} << 30;

std::optional<MPI_Datatype> mpi_type(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat:
      return MPI_FLOAT;
    case torch::kDouble:
      return MPI_DOUBLE;
    case torch::kInt:
      return MPI_INT32_T;
    case torch::kLong:
      return MPI_INT64_T;
    case torch::kShort:
      return MPI_INT16_T;
    case torch::kByte:
      return MPI_UINT8_T;
    case torch::kChar:
      return MPI_INT8_T;
    default:
      return std::nullopt;
  }
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return MPI_SUM;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kMin:
      return MPI_MIN;
  }
  return MPI_SUM;
}

int64_t bytes_of(const torch::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

class MpiCommunicator : public ComposedCommunicator {
 public:
  MpiCommunicator(
      const StorePtr& store,
      CommunicatorOptions options,
      std::shared_ptr<MpiGroup> group)
      : ComposedCommunicator(
            store,
            std::move(options),
            GroupMessages(group),
            Waiting::kHelp),
        group_(std::move(group)),
        exceptions_(std::uncaught_exceptions()) {}

  ~MpiCommunicator() override {
    // A rank that ends by an exception will not answer its peers any more.
    if (std::uncaught_exceptions() > exceptions_)
      group_->close();
    end_tasks();
  }

 private:
  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record record)
      override {
    const auto type = mpi_type(tensor.scalar_type());
    if (!type)
      return op == ReduceOp::kSum ? sum_by_messages(tensor, record)
                                  : choose_of_all(tensor, op, record);
    if (op == ReduceOp::kSum && bytes_of(tensor) > kSmallBytes) {
      return size() == 2 && bytes_of(tensor) <= kPairBytes
                 ? sum_by_messages(tensor, record)
                 : sum_by_owners(even_chunks(tensor), record);
    }
    return composed(
        record, [group = group_, flat = tensor.view({-1}), type = *type, op] {
          for (int64_t begin = 0; begin < flat.numel();
               begin += kLargestCount) {
            const auto part = flat.narrow(
                0, begin, std::min(kLargestCount, flat.numel() - begin));
            group->carry_out(
                [&](MPI_Request* request) {
                  return MPI_Iallreduce(
                      MPI_IN_PLACE,
                      part.data_ptr(),
                      static_cast<int>(part.numel()),
                      type,
                      mpi_op(op),
                      group->comm(),
                      request);
                },
                {part});
          }
        });
  }

  // One chunk per rank; their sizes differ by one element at most.
  std::vector<torch::Tensor> even_chunks(const torch::Tensor& tensor) const {
    const auto flat = tensor.view({-1});
    std::vector<torch::Tensor> chunks;
    for (int64_t rank = 0; rank < size(); ++rank) {
      const int64_t begin = flat.numel() * rank / size();
      const int64_t end = flat.numel() * (rank + 1) / size();
      chunks.push_back(flat.narrow(0, begin, end - begin));
    }
    return chunks;
  }

  // Computes the maximum or minimum for types that MPI does not know.
  WorkPtr
  choose_of_all(const torch::Tensor& tensor, ReduceOp op, Record record) {
    const auto all = torch::empty({size(), tensor.numel()}, tensor.options());
    return gathered(all, tensor, record, [tensor, all, op] {
      const auto flat = tensor.view({-1});
      flat.copy_(op == ReduceOp::kMax ? all.amax(0) : all.amin(0));
    });
  }

  WorkPtr gathered(
      const torch::Tensor& output,
      const torch::Tensor& input,
      Record record,
      std::function<void()> last = nullptr) {
    return composed(
        record,
        [group = group_, output, input] {
          const auto own = output.view({group->size(), -1})[group->rank()];
          if (own.data_ptr() != input.data_ptr())
            own.copy_(input.view({-1}));
          const auto count = static_cast<int>(bytes_of(input));
          group->carry_out(
              [&](MPI_Request* request) {
                return MPI_Iallgather(
                    MPI_IN_PLACE,
                    0,
                    MPI_DATATYPE_NULL,
                    output.data_ptr(),
                    count,
                    MPI_BYTE,
                    group->comm(),
                    request);
              },
              {output});
        },
        std::move(last));
  }

  WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    if (bytes_of(input) > kLargestCount)
      return ComposedCommunicator::do_all_gather(output, input, record);
    return gathered(output, input, record);
  }

  WorkPtr do_broadcast(torch::Tensor tensor, int root, Record record) override {
    return composed(record, [group = group_, bytes = as_bytes(tensor), root] {
      for (int64_t begin = 0; begin < bytes.numel(); begin += kLargestCount) {
        const auto part = bytes.narrow(
            0, begin, std::min(kLargestCount, bytes.numel() - begin));
        group->carry_out(
            [&](MPI_Request* request) {
              return MPI_Ibcast(
                  part.data_ptr(),
                  static_cast<int>(part.numel()),
                  MPI_BYTE,
                  root,
                  group->comm(),
                  request);
            },
            {part});
      }
    });
  }

  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      Record record) override {
    const int64_t chunk = bytes_of(input) / size();
    if (!splits.is_even() || chunk > kLargestCount)
      return ComposedCommunicator::do_all_to_all(output, input, splits, record);
    return composed(record, [group = group_, output, input, chunk] {
      group->carry_out(
          [&](MPI_Request* request) {
            return MPI_Ialltoall(
                input.data_ptr(),
                static_cast<int>(chunk),
                MPI_BYTE,
                output.data_ptr(),
                static_cast<int>(chunk),
                MPI_BYTE,
                group->comm(),
                request);
          },
          {output, input});
    });
  }

  WorkPtr do_barrier(Record record) override {
    return composed(record, [group = group_] {
      group->carry_out(
          [&](MPI_Request* request) {
            return MPI_Ibarrier(group->comm(), request);
          },
          {});
    });
  }

  std::shared_ptr<MpiGroup> group_;
  int exceptions_;  // in flight when it was made
};

std::string library_version() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  text.resize(static_cast<size_t>(length));
  return text.substr(0, text.find_first_of(",\n"));
}

}  // namespace

bool has_mpi() {
  return true;
}

void check_mpi(const LaunchEnvironment& environment) {
  if (environment.has_mpi && environment.launcher != "brigade")
    return;
  throw ConfigError(fmt::format(
      "[comm] the backend \"mpi\" needs ranks that MPI's own launcher started, "
      "but these were started by {}: run mpirun -n 4 brigade train --config "
      "FILE (or mpiexec, or srun --mpi=pmix), without --nproc; or set "
      "/distributed/backend to \"gloo\"",
      environment.launcher == "brigade"  ? "--nproc"
      : environment.launcher == "single" ? "hand"
                                         : environment.launcher));
}

CommunicatorPtr make_mpi_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options) {
  const MpiProcessPtr process = MpiProcess::get();
  std::vector<int> members = options.members;
  if (members.empty()) {
    members.resize(static_cast<size_t>(size));
    std::iota(members.begin(), members.end(), 0);
  }
  const int here = members.at(static_cast<size_t>(rank));
  const int last = *std::max_element(members.begin(), members.end());
  if (here != process->rank() || last >= process->size())
    throw ConfigError(fmt::format(
        "[comm] this is rank {} of at least {}, but MPI calls it rank {} of "
        "{}: "
        "start the ranks with the mpirun of the MPI that Brigade was built "
        "with, {}",
        here,
        last + 1,
        process->rank(),
        process->size(),
        library_version()));
  auto group = std::make_shared<MpiGroup>(process, rank, members, options);
  return std::make_shared<MpiCommunicator>(
      store, std::move(options), std::move(group));
}

void end_mpi() {
  MpiProcess::end_if_started();
}

}  // namespace brigade
