// Package resource measures what a host may be short of, and says how much of it a
// service would need.
//
// A [Registry] holds a host's resources by name, each with a [Meter] that measures
// its use and capacity and a [Model] that smooths or forecasts the use. It publishes
// them with the host's reports: the four of lb.Resources under their well-known
// names, any other under its own. And it holds the services with what one connection
// of each takes, from which follows the load factor of Venkatasubramanian and
// Ramanathan (Load Management in Distributed Video Servers, ICDCS 1997): the largest
// share, over all resources, of the demand in what is left.
//
//	r := resource.NewRegistry()
//	err := r.Add(resource.Resource{Name: resource.CPU, Unit: "CPUs", Meter: resource.CPUs(), Model: &resource.EWMA{}})
//	err = r.Add(resource.Resource{Name: "accept queue", Meter: resource.AcceptQueue(80)})
//	err = r.Run(ctx, board, time.Second)
//
// Meters for CPU, memory, disk, network and accept queues read /proc and /sys on
// Linux and know the limits of control groups (version 2), whichever is nearer to its
// end. On other systems CPU and memory are what the Go runtime tells of this process.
// What a meter cannot measure is unknown, never 0: an idle host attracts connections,
// and a host that nobody can measure should not.
package resource
