// The mock driver of Kubernetes' end-to-end suite as a program: a CSI driver of another author. It keeps
// its volumes in memory, and gives a pod an empty folder in place of each.
package main

import (
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	socket := flag.String("socket", "", "the path of the socket")
	flag.Parse()
	listener, err := net.Listen("unix", *socket)
	if err != nil {
		log.Fatal(err)
	}
	mock := service.New(service.Config{DriverName: service.Name, PermissiveTargetPath: true, EnableTopology: true})
	server := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock})
	if err := server.Start(listener, nil); err != nil {
		log.Fatal(err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
	server.Stop()
}
