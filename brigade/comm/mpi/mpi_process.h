// MPI in this process: started once, called by one thread at a time, ended with
// the process. Used by the files of comm/mpi/ only.
#pragma once

#include <mpi.h>
#include <torch/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace brigade {

class MpiProcess;
using MpiProcessPtr = std::shared_ptr<MpiProcess>;

class MpiProcess {
 public:
  // The first call starts MPI, unless the program has started it. Every rank of
  // MPI_COMM_WORLD must call it. Throws ConfigError if MPI does not allow calls
  // from several threads: one after the other (MPI_THREAD_SERIALIZED), or at
  // the same time if the program has started it (MPI_THREAD_MULTIPLE).
  static MpiProcessPtr get();

  // Ends MPI if it was started here and all ranks end too (after a failure only
  // if they do so soon). Otherwise MPI's launcher must end them.
  ~MpiProcess();
  // The same before the process ends, for programs that do not call exit().
  // Does nothing if MPI was not started, or has ended.
  static void end_if_started();
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  int rank() const { return rank_; }  // in MPI_COMM_WORLD
  int size() const { return size_; }
  // The communicator of all ranks, used only to make groups.
  MPI_Comm control() const { return control_; }
  // The largest tag of a message.
  int largest_tag() const { return largest_tag_; }

  // Calls MPI while no other thread does. Throws std::runtime_error with MPI's
  // text if `call` returns an error code.
  template <typename Call>
  void locked(const Call& call) {
    const std::lock_guard lock(mutex_);
    check(call());
  }

  // Waits until all requests have ended and are MPI_REQUEST_NULL. Calls `look`
  // now and then meanwhile and passes on its exceptions; after the timeout
  // throws one that names it.
  void wait(
      std::vector<MPI_Request>& requests,
      std::chrono::milliseconds timeout,
      const std::function<void()>& look = nullptr);

  // Counts operations that nobody waits for: while there are any, a thread
  // calls MPI now and then, so that they progress.
  void begin_unattended();
  void end_unattended();

  // Keeps memory of an operation that will not end any more.
  void abandon(std::vector<torch::Tensor> tensors);
  // Notes that the ranks do not all end together.
  void set_failed();

 private:
  MpiProcess();
  static void check(int code);
  void run_unattended();
  void end();
  bool all_ranks_end();

  std::mutex mutex_;  // of MPI
  bool is_ours_ = false;
  bool has_ended_ = false;
  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 0;
  // Whether this host has more ranks than processors.
  bool is_crowded_ = false;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::vector<torch::Tensor> abandoned_;

  std::mutex state_mutex_;
  std::condition_variable changed_;
  int unattended_ = 0;
  bool has_failed_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace brigade
